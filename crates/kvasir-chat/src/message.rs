//! Messages of a chat in the form that chat templates read: text messages, tool results, and
//! assistant turns assembled from parts.

use serde_json::{Value, json};

/// Role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// System prompt; `developer` is an alias.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// Content of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Content {
    /// No content.
    #[default]
    Empty,
    /// Text; several text parts are concatenated.
    Text(String),
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its role.
    pub role: Role,
    /// Its content.
    pub content: Content,
    /// The JSON object that the chat template reads: content as one string, tool call arguments as
    /// objects.
    pub source: Value,
}

impl Message {
    /// A system prompt.
    pub fn system(text: impl Into<String>) -> Self {
        Self::text(Role::System, text.into())
    }

    /// A message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::text(Role::User, text.into())
    }

    /// A message of the model without tool calls. [`AssistantTurn`] builds one with calls.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::text(Role::Assistant, text.into())
    }

    /// A text message without tool calls.
    pub fn text(role: Role, text: String) -> Self {
        let name = match role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let source = json!({"role": name, "content": text});
        Self { role, content: Content::Text(text), source }
    }

    /// The result of the tool call `id`.
    pub fn result(id: &str, text: String) -> Self {
        let source = json!({"role": "tool", "tool_call_id": id, "content": text});
        Self { role: Role::Tool, content: Content::Text(text), source }
    }
}

/// Builder of an assistant message whose parts arrive separately.
#[derive(Clone, Debug, Default)]
pub struct AssistantTurn {
    text: Option<String>,
    reasoning: String,
    calls: Vec<Value>,
}

impl AssistantTurn {
    /// Appends text.
    pub fn push_text(&mut self, text: &str) {
        self.text.get_or_insert_default().push_str(text);
    }

    /// Appends reasoning.
    pub fn push_reasoning(&mut self, text: &str) {
        self.reasoning.push_str(text);
    }

    /// Appends a tool call. `arguments` is an object, or the raw text if it does not parse to one.
    pub fn push_call(&mut self, id: &str, name: &str, arguments: Value) {
        let function = json!({"name": name, "arguments": arguments});
        self.calls.push(json!({"id": id, "type": "function", "function": function}));
    }

    /// Builds the message, or `None` if there are no parts; leaves the builder empty.
    pub fn take(&mut self) -> Option<Message> {
        let Self { text, reasoning, calls } = std::mem::take(self);
        if text.is_none() && reasoning.is_empty() && calls.is_empty() {
            return None;
        }
        let mut source = json!({"role": "assistant", "content": text});
        if !reasoning.is_empty() {
            source["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            source["tool_calls"] = calls.into();
        }
        let content = text.map_or(Content::Empty, Content::Text);
        Some(Message { role: Role::Assistant, content, source })
    }
}

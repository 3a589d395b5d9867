//! Chat messages as chat templates see them: text messages, tool results, and assistant turns
//! assembled from parts.

use crate::error::ApiError;
use crate::request::reader::Reader;
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
    /// The message as the chat template sees it: content as one string, tool call arguments as
    /// objects.
    pub source: Value,
}

impl Message {
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
pub(crate) struct AssistantTurn {
    text: Option<String>,
    reasoning: String,
    calls: Vec<Value>,
}

impl AssistantTurn {
    /// Appends text.
    pub(super) fn say(&mut self, text: &str) {
        self.text.get_or_insert_default().push_str(text);
    }

    /// Appends reasoning.
    pub(super) fn think(&mut self, text: &str) {
        self.reasoning.push_str(text);
    }

    /// Appends a tool call.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        let function = json!({"name": name, "arguments": arguments});
        self.calls.push(json!({"id": id, "type": "function", "function": function}));
    }

    /// Takes the message, or `None` if there are no parts; the builder is empty afterwards.
    pub(super) fn take(&mut self) -> Option<Message> {
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

/// Fields of a part of text. Markers of caches, citations and log-probabilities do not change the
/// content; clients send the parts of an answer back with them.
pub(crate) const TEXT_PART: &[&str] =
    &["type", "text", "annotations", "citations", "logprobs", "cache_control", "index"];

/// The note that takes the place of a part that is no text in the result of a call, so that the
/// conversation continues. The part is recorded as ignored.
pub(crate) fn omission_note(part: &Reader, kind: &str) -> String {
    part.ignore(kind);
    format!("[{} left out]", kind.trim_start_matches("input_"))
}

/// The error for a content part that is not text.
pub(crate) fn unsupported_part(part: &Reader, kind: Option<&str>) -> ApiError {
    const MEDIA: &[&str] = &[
        "image_url",
        "input_image",
        "image",
        "input_audio",
        "audio",
        "video_url",
        "input_file",
        "file",
        "document",
    ];
    match kind {
        Some(kind) if MEDIA.contains(&kind) => {
            part.error("type", format!("is `{kind}`; the engine reads text, no media"))
        }
        _ => part.error("type", "must be one that this endpoint reads"),
    }
}

use super::{Content, Message, Reader, Role};
use crate::ApiError;
use serde_json::{Value, json};

impl Message {
    /// Words of one who makes no calls.
    pub fn said(role: Role, text: String) -> Self {
        let name = match role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let source = json!({"role": name, "content": text});
        Self { role, content: Content::Text(text), source }
    }

    /// The result of the call `id`.
    pub fn result(id: &str, text: String) -> Self {
        let source = json!({"role": "tool", "tool_call_id": id, "content": text});
        Self { role: Role::Tool, content: Content::Text(text), source }
    }
}

/// A turn of the assistant that comes in parts.
#[derive(Clone, Debug, Default)]
pub(super) struct AssistantTurn {
    text: Option<String>,
    reasoning: String,
    calls: Vec<Value>,
}

impl AssistantTurn {
    /// It says more.
    pub(super) fn say(&mut self, text: &str) {
        self.text.get_or_insert_default().push_str(text);
    }

    /// It thinks more.
    pub(super) fn think(&mut self, text: &str) {
        self.reasoning.push_str(text);
    }

    /// It makes a call.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        let function = json!({"name": name, "arguments": arguments});
        self.calls.push(json!({"id": id, "type": "function", "function": function}));
    }

    /// The message, if there is anything in it; the turn is empty afterwards.
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

/// The error for a part of a message that is neither text nor known.
pub(super) fn no_text(part: &Reader, kind: Option<&str>) -> ApiError {
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

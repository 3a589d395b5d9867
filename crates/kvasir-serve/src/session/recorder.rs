//! Records an answer and appends it to its session when it ends normally.

use crate::session::store::{SessionContent, Turn};
use kvasir_chat::Delta;
use kvasir_kv::Token;
use serde_json::{Map, Value, json};

/// Collects what a normally ended answer appends to its session.
pub(crate) struct TurnRecorder {
    turn: Turn,
    /// Prompt tokens, then answer tokens.
    tokens: Vec<Token>,
    /// The conversation; `None` for a raw text session.
    messages: Option<Vec<Value>>,
    call_ids: String,
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

impl TurnRecorder {
    /// For an answer to these messages; tool call ids have the prefix `call_ids`.
    pub(crate) fn of_messages(turn: Turn, messages: Vec<Value>, call_ids: String) -> Self {
        Self { messages: Some(messages), call_ids, ..Self::of_text(turn) }
    }

    /// For a raw completion.
    pub(crate) fn of_text(turn: Turn) -> Self {
        let (tokens, call_ids, content, reasoning, calls) = Default::default();
        Self { turn, tokens, messages: None, call_ids, content, reasoning, calls }
    }

    /// Binds the engine request to the session.
    pub(crate) fn bind(&mut self, request: &mut kvasir_engine::Request) {
        request.params.session = Some(self.turn.id());
        self.tokens.clone_from(&request.prompt);
    }

    pub(crate) fn push_token(&mut self, token: Token) {
        self.tokens.push(token);
    }

    pub(crate) fn push_deltas(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content += text,
                Delta::Reasoning(text) => self.reasoning += text,
                Delta::CallBegin { name, .. } => self.calls.push((name.clone(), String::new())),
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        *arguments += text;
                    }
                }
            }
        }
    }

    /// Commits the turn. `by_token`: the answer ended with an end-of-sequence or stop token.
    pub(crate) fn commit(mut self, by_token: bool) {
        let Some(mut messages) = self.messages.take() else {
            // An end-of-sequence token is not part of a text that will be continued.
            if by_token {
                self.tokens.pop();
            }
            return self.turn.finish(SessionContent::Text, self.tokens.into());
        };
        let call = |(i, (name, arguments)): (usize, (String, String))| {
            let id = format!("{}_{i}", self.call_ids);
            // A truncated call cannot be answered, and no template could render it.
            let whole = serde_json::from_str::<Map<String, Value>>(&arguments).is_ok();
            whole.then(
                || json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
            )
        };
        let calls: Vec<Value> = self.calls.into_iter().enumerate().filter_map(call).collect();
        let content =
            if self.content.is_empty() && !calls.is_empty() { Value::Null } else { self.content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
        let content = self.turn.messages(messages);
        self.turn.finish(content, self.tokens.into());
    }
}

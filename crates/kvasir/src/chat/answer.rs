//! The answer of a chat.

use crate::answer::Answer;
use kvasir_chat::{AssistantTurn, Delta, Message};
use serde_json::Value;

/// A tool call of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id, unique within the answer and its engine: the result's message names it.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text. Incomplete if the answer was cut at its length.
    pub arguments: String,
}

/// The answer of a chat.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatAnswer {
    /// Visible text.
    pub content: String,
    /// Reasoning, of a model that reasons.
    pub reasoning: String,
    /// Tool calls.
    pub calls: Vec<ToolCall>,
    /// Tokens, raw text, finish reason and timings.
    pub raw: Answer,
}

impl ChatAnswer {
    /// The answer as a message, for the next turn of the conversation.
    pub fn message(&self) -> Message {
        let mut turn = AssistantTurn::default();
        turn.push_text(&self.content);
        turn.push_reasoning(&self.reasoning);
        for call in &self.calls {
            let arguments = serde_json::from_str(&call.arguments).ok().filter(Value::is_object);
            let arguments = arguments.unwrap_or_else(|| call.arguments.as_str().into());
            turn.push_call(&call.id, &call.name, arguments);
        }
        turn.take().unwrap_or_else(|| Message::assistant(""))
    }
}

/// Collects the deltas of an answer.
#[derive(Default)]
pub(super) struct Collected {
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
}

impl Collected {
    /// Appends a delta. `request` makes ids of calls unique.
    pub(super) fn push(&mut self, request: u64, delta: &Delta) {
        match delta {
            Delta::Content(text) => self.content += text,
            Delta::Reasoning(text) => self.reasoning += text,
            Delta::CallBegin { index, name } => self.calls.push(ToolCall {
                id: format!("call_{request}_{index}"),
                name: name.clone(),
                arguments: String::new(),
            }),
            Delta::CallArguments { index, text } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.arguments += text;
                }
            }
        }
    }

    /// The whole answer.
    pub(super) fn finish(&mut self, raw: Answer) -> ChatAnswer {
        let Self { content, reasoning, calls } = std::mem::take(self);
        ChatAnswer { content, reasoning, calls, raw }
    }
}

//! The parsed answer of a chat: content, reasoning and tool calls.

use crate::answer::Answer;
use kvasir_chat::{AssistantTurn, Delta, Message};
use serde_json::Value;

/// A tool call of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id, unique within its engine. Pass it to [`Message::result`].
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text; incomplete if the answer reached `max_tokens`.
    pub arguments: String,
}

/// A parsed answer and the raw one.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatAnswer {
    /// Visible text.
    pub content: String,
    /// Reasoning; empty if the model does not reason.
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

/// Builds a [`ChatAnswer`] from its deltas.
#[derive(Default)]
pub(super) struct ChatAnswerBuilder {
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
}

impl ChatAnswerBuilder {
    /// Appends a delta. `request` makes the ids of tool calls unique.
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

    /// Builds the answer; leaves the builder empty.
    pub(super) fn finish(&mut self, raw: Answer) -> ChatAnswer {
        let Self { content, reasoning, calls } = std::mem::take(self);
        ChatAnswer { content, reasoning, calls, raw }
    }
}

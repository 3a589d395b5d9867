//! Writes an answer as Ollama's lines (NDJSON): text, thinking, tool calls, and counts at the end.

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::reply::EventWriter;
use crate::http::answers::usage::Usage;
use crate::timestamp::rfc3339;
use kvasir_chat::Delta;
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime};

/// Response schema of a line: which fields hold the text.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// `message`, with content, thinking and tool calls.
    Chat,
    /// `response` and `thinking`.
    Generate,
}

/// A part of an answer.
#[derive(Default)]
pub(super) struct Piece {
    content: String,
    thinking: String,
    calls: Vec<Value>,
    pub(super) logprobs: Vec<Value>,
}

impl Piece {
    pub(super) fn append(&mut self, other: Self) {
        self.content += &other.content;
        self.thinking += &other.thinking;
        self.calls.extend(other.calls);
    }
}

/// Writes an answer as JSON lines. A tool call is written when it is complete: its arguments are an
/// object.
pub(super) struct Lines {
    form: Form,
    model: String,
    began: Instant,
    /// Prefix of the ids of tool calls.
    ids: String,
    /// Number of tool calls written.
    calls: usize,
    /// Name and arguments of the open tool call.
    call: Option<(String, String)>,
    /// Token ids of the prompt and of the answer so far, if the last line returns them (`context`).
    context: Option<Vec<Token>>,
}

impl Lines {
    /// A writer of the answer `id`, which begins now.
    pub(super) fn new(form: Form, model: String, id: &str) -> Self {
        let (began, ids) = (Instant::now(), format!("call_{id}"));
        Self { form, model, began, ids, calls: 0, call: None, context: None }
    }

    /// Adds `context` to the last line: the token ids of this prompt and of its answer.
    pub(super) fn with_context(self, prompt: Vec<Token>) -> Self {
        Self { context: Some(prompt), ..self }
    }

    /// Takes the deltas of an increment as pieces, and its token ids for `context`; leaves the
    /// log-probabilities.
    pub(super) fn take(&mut self, increment: &mut AnswerIncrement) -> Vec<Piece> {
        if let Some(context) = &mut self.context {
            context.append(&mut increment.ids);
        }
        self.pieces(std::mem::take(&mut increment.deltas), increment.ended.is_some())
    }

    pub(super) fn line(&self, piece: Piece, done: bool) -> Value {
        let mut line = json!({"model": self.model, "created_at": rfc3339(SystemTime::now())});
        match self.form {
            Form::Chat => {
                line["message"] = json!({"role": "assistant", "content": piece.content});
                if !piece.thinking.is_empty() {
                    line["message"]["thinking"] = piece.thinking.into();
                }
                if !piece.calls.is_empty() {
                    line["message"]["tool_calls"] = piece.calls.into();
                }
            }
            Form::Generate => {
                line["response"] = piece.content.into();
                if !piece.thinking.is_empty() {
                    line["thinking"] = piece.thinking.into();
                }
            }
        }
        if !piece.logprobs.is_empty() {
            line["logprobs"] = piece.logprobs.into();
        }
        line["done"] = done.into();
        line
    }

    /// Splits deltas into pieces; `ended` completes an open tool call.
    fn pieces(&mut self, deltas: Vec<Delta>, ended: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Content(content) => pieces.push(Piece { content, ..Piece::default() }),
                Delta::Reasoning(thinking) => pieces.push(Piece { thinking, ..Piece::default() }),
                Delta::CallBegin { name, .. } => {
                    pieces.extend(self.take_call());
                    self.call = Some((name, String::new()));
                }
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        if ended {
            pieces.extend(self.take_call());
        }
        pieces
    }

    /// Closes the open tool call. A call whose arguments are no object is dropped: the answer was cut
    /// short, or an unconstrained model wrote something else.
    fn take_call(&mut self) -> Option<Piece> {
        let (name, arguments) = self.call.take()?;
        let arguments = serde_json::from_str(&arguments).ok().filter(Value::is_object)?;
        let index = self.calls;
        self.calls += 1;
        let function = json!({"index": index, "name": name, "arguments": arguments});
        let call = json!({"id": format!("{}_{index}", self.ids), "function": function});
        Some(Piece { calls: vec![call], ..Piece::default() })
    }

    /// Writes the finish reason, durations, token counts and `context` into the last line.
    pub(super) fn put_outcome(&self, line: &mut Value, outcome: &AnswerOutcome) {
        // Ollama has no reason of its own for tool calls.
        line["done_reason"] = if outcome.reason == "length" { "length" } else { "stop" }.into();
        let total = self.began.elapsed();
        // A single token has no time between tokens. Clients divide by this duration.
        let eval = match outcome.decode_time {
            Duration::ZERO => total.saturating_sub(outcome.ttft).max(Duration::from_nanos(1)),
            time => time,
        };
        line["total_duration"] = nanos(total).into();
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = outcome.prompt.into();
        line["prompt_eval_duration"] = nanos(outcome.ttft).into();
        line["eval_count"] = outcome.tokens.into();
        line["eval_duration"] = nanos(eval).into();
        if let Some(context) = &self.context {
            line["context"] = context.as_slice().into();
        }
    }
}

impl EventWriter for Lines {
    fn open(&mut self, _: &mut String) {}

    fn increment(&mut self, out: &mut String, _: usize, mut increment: AnswerIncrement) {
        let mut logprobs = std::mem::take(&mut increment.logprobs);
        for mut piece in self.take(&mut increment) {
            piece.logprobs = std::mem::take(&mut logprobs);
            push(out, &self.line(piece, false));
        }
        if let Some(outcome) = increment.ended {
            let mut line = self.line(Piece { logprobs, ..Piece::default() }, true);
            self.put_outcome(&mut line, &outcome);
            push(out, &line);
        }
    }

    // The format has no keep-alive.
    fn ping(&mut self, _: &mut String) {}

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        push(out, &error.to_ollama());
    }

    fn close(&mut self, _: &mut String, _: &Usage) {}
}

/// Appends `line` and a newline.
pub(super) fn push(out: &mut String, line: &Value) {
    out.push_str(&line.to_string());
    out.push('\n');
}

/// A duration in nanoseconds, Ollama's unit; saturates.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(index: usize) -> Delta {
        Delta::CallBegin { index, name: "f".into() }
    }

    fn arguments(index: usize, text: &str) -> Delta {
        Delta::CallArguments { index, text: text.into() }
    }

    #[test]
    fn calls_have_ids_and_incomplete_ones_are_dropped() {
        let mut lines = Lines::new(Form::Chat, "tiny".into(), "7");
        let deltas = vec![
            begin(0),
            arguments(0, r#"{"a":"#),
            arguments(0, "1}"),
            begin(1),
            arguments(1, r#"{"a": "x"#),
        ];
        let calls = |pieces: Vec<Piece>| pieces.into_iter().flat_map(|piece| piece.calls).collect::<Vec<_>>();
        let function = json!({"index": 0, "name": "f", "arguments": {"a": 1}});
        assert_eq!(calls(lines.pieces(deltas, true)), [json!({"id": "call_7_0", "function": function})]);
        // Text instead of an object, and no arguments at all.
        let deltas = vec![begin(0), arguments(0, "[1]"), begin(1), begin(2), arguments(2, "{}")];
        let last = calls(lines.pieces(deltas, true));
        assert_eq!((last.len(), &last[0]["function"]["index"]), (1, &json!(1)));
    }
}

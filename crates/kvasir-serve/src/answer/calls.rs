//! Streaming tool call parser: dispatches generated text to the parser of the model's dialect.
//!
//! The parsers are `json_calls`, `tagged_calls` (XML-like) and `pythonic_calls`. Harmony (gpt-oss)
//! calls are parsed with the channels, in `harmony`.
//!
//! Invariants: text that resembles a call but is not one is emitted as text, markers included, so
//! no model output is lost. The concatenated events do not depend on how the text is split into
//! pieces. `calls/tests.rs` checks both for every dialect.

#[cfg(test)]
mod tests;

use crate::{
    answer::{
        events::CallEvent, json_calls::JsonCalls, pythonic_calls::PythonicCalls, tagged_calls::TaggedCalls,
    },
    dialect::{markers::Reading, tool_calls::ToolDialect},
    request::tools::Tool,
};
use std::sync::Arc;

/// Streaming tool call parser for any dialect except harmony.
#[derive(Clone, Debug)]
pub struct Calls(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Json(JsonCalls),
    Tagged(TaggedCalls),
    Pythonic(PythonicCalls),
}

impl Calls {
    /// A parser for `dialect`, or `None` for harmony, whose calls are messages of their own.
    /// `tools` supply the schemas that decide whether an argument is a string, and the names that
    /// make an unmarked object a call. With `constrained`, calls were generated under
    /// [`CallSyntax`](crate::grammar::call_scanner::CallSyntax), so an unmarked object is a call only if it begins with
    /// its name.
    pub fn new(dialect: ToolDialect, tools: Arc<[Tool]>, constrained: bool) -> Option<Self> {
        Some(Self(match dialect.reading() {
            Reading::Json(marks) => Kind::Json(JsonCalls::new(marks, tools, constrained)),
            Reading::Tagged(tags) => Kind::Tagged(TaggedCalls::new(tags, tools)),
            Reading::Pythonic => Kind::Pythonic(PythonicCalls::default()),
            Reading::Harmony => return None,
        }))
    }

    /// Feeds more text; returns the events that no later text can change.
    pub fn push(&mut self, text: &str) -> Vec<CallEvent> {
        match &mut self.0 {
            Kind::Json(calls) => calls.push(text),
            Kind::Tagged(calls) => calls.push(text),
            Kind::Pythonic(calls) => calls.push(text),
        }
    }

    /// Ends the text: an incomplete call is emitted as text unless its name was already emitted.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        match &mut self.0 {
            Kind::Json(calls) => calls.finish(),
            Kind::Tagged(calls) => calls.finish(),
            Kind::Pythonic(calls) => calls.finish(),
        }
    }

    /// Number of calls parsed so far.
    pub fn count(&self) -> usize {
        match &self.0 {
            Kind::Json(calls) => calls.count(),
            Kind::Tagged(calls) => calls.count(),
            Kind::Pythonic(calls) => calls.count(),
        }
    }
}

//! Streaming tool call parser: dispatches generated text to the parser of the model's dialect.
//!
//! The parsers are `json_calls`, `tagged_calls` (XML-like) and `buffered_calls`; `calls_or_format`
//! is in front of them if the answer may be in a response format instead. Harmony (gpt-oss) calls
//! are parsed with the channels, in `harmony`.
//!
//! Invariants: text that resembles a call but is not one is emitted as text, markers included, so
//! no model output is lost. The concatenated events do not depend on how the text is split into
//! pieces. `calls/tests.rs` checks both for every dialect.

pub(crate) mod calls_or_format;
#[cfg(test)]
mod tests;

use crate::answer::buffered_calls::BufferedCalls;
use crate::answer::call_constraint::CallConstraint;
use crate::answer::call_machine::CallMachine;
use crate::answer::calls::calls_or_format::CallsOrFormat;
use crate::answer::events::CallEvent;
use crate::answer::json_calls::JsonCalls;
use crate::answer::tagged_calls::TaggedCalls;
use crate::dialect::markers::CallFormat;
use crate::dialect::tool_calls::ToolDialect;
use crate::tool::Tool;
use std::sync::Arc;

/// Streaming tool call parser for any dialect except harmony.
#[derive(Clone, Debug)]
pub struct ToolCallParser(Parser);

#[derive(Clone, Debug)]
enum Parser {
    Json(JsonCalls),
    Tagged(TaggedCalls),
    Buffered(BufferedCalls),
    OrFormat(Box<CallsOrFormat>),
}

impl ToolCallParser {
    /// A parser for `dialect`, or `None` for harmony, whose calls are messages of their own.
    /// `tools` supply the schemas that decide whether an argument is a string, and the names that
    /// make an unmarked object a call. With `constrained`, calls were generated under
    /// [`CallSyntax`](crate::grammar::call_scanner::CallSyntax): an unmarked object is a call only
    /// if it begins with its name, and an answer that ends behind a start marker was cut within a
    /// call.
    pub fn new(dialect: ToolDialect, tools: Arc<[Tool]>, constrained: bool) -> Option<Self> {
        Some(Self(match dialect.call_format() {
            CallFormat::Json(marks) => Parser::Json(JsonCalls::new(marks, tools, constrained)),
            CallFormat::Tagged(tags) => Parser::Tagged(TaggedCalls::new(tags, tools, constrained)),
            CallFormat::Buffered(markers) => Parser::Buffered(BufferedCalls::new(markers)),
            CallFormat::Harmony => return None,
        }))
    }

    /// A parser of calls that were generated under `constraint`.
    pub(crate) fn under(
        constraint: &CallConstraint,
        dialect: ToolDialect,
        tools: Arc<[Tool]>,
    ) -> Option<Self> {
        match constraint {
            CallConstraint::None | CallConstraint::Required => Self::new(dialect, tools, false),
            CallConstraint::FromMarker => Self::new(dialect, tools, true),
            CallConstraint::OrFormat(classifier) => {
                let calls = Self::new(dialect, tools, true)?;
                let parser = CallsOrFormat::new(classifier.clone(), calls, dialect.marks());
                Some(Self(Parser::OrFormat(Box::new(parser))))
            }
        }
    }

    /// Feeds more text; returns the events that no later text can change.
    pub fn push(&mut self, text: &str) -> Vec<CallEvent> {
        match &mut self.0 {
            Parser::Json(calls) => calls.push(text),
            Parser::Tagged(calls) => calls.push(text),
            Parser::Buffered(calls) => calls.push(text),
            Parser::OrFormat(parser) => parser.push(text),
        }
    }

    /// Ends the text: an incomplete call is emitted as text unless its name was already emitted, or
    /// it is known to be a call that was cut.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        match &mut self.0 {
            Parser::Json(calls) => calls.finish(),
            Parser::Tagged(calls) => calls.finish(),
            Parser::Buffered(calls) => calls.finish(),
            Parser::OrFormat(parser) => parser.finish(),
        }
    }

    /// Whether a call has begun whose arguments are incomplete.
    pub fn is_open(&self) -> bool {
        match &self.0 {
            Parser::Json(calls) => calls.is_open(),
            Parser::Tagged(calls) => calls.is_open(),
            // A list of calls is emitted as a whole.
            Parser::Buffered(_) => false,
            Parser::OrFormat(parser) => parser.is_open(),
        }
    }

    /// Number of calls parsed so far.
    pub fn count(&self) -> usize {
        match &self.0 {
            Parser::Json(calls) => calls.count(),
            Parser::Tagged(calls) => calls.count(),
            Parser::Buffered(calls) => calls.count(),
            Parser::OrFormat(parser) => parser.count(),
        }
    }
}

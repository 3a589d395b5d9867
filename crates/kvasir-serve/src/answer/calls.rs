use super::{
    ToolDialect, dialect::Reading, json_calls::JsonCalls, pythonic_calls::PythonicCalls,
    tagged_calls::TaggedCalls,
};
use crate::request::Tool;
use std::sync::Arc;

/// A piece of an answer that may hold tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// Text for the reader.
    Text(String),
    /// A call begins.
    Begin {
        /// Number of the call in the answer.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of the JSON text of its arguments.
    Arguments {
        /// Number of the call in the answer.
        index: usize,
        /// The next characters.
        text: String,
    },
}

/// Reads calls out of an answer, in whichever dialect the model writes them.
///
/// What looks like a call and is none comes out as text, marks included: nothing a model wrote is lost.
#[derive(Clone, Debug)]
pub struct Calls(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Json(JsonCalls),
    Tagged(TaggedCalls),
    Pythonic(PythonicCalls),
}

impl Calls {
    /// For this dialect; none for one whose calls are messages of their own. `tools` tell which arguments are texts, and
    /// what is a call, where the dialect does not. `constrained`: calls were generated under [`CallSyntax`](super::CallSyntax), so
    /// an object without a mark is a call only if it begins with its name.
    pub fn new(dialect: ToolDialect, tools: Arc<[Tool]>, constrained: bool) -> Option<Self> {
        Some(Self(match dialect.reading() {
            Reading::Json(marks) => Kind::Json(JsonCalls::new(marks, tools, constrained)),
            Reading::Tagged(tags) => Kind::Tagged(TaggedCalls::new(tags, tools)),
            Reading::Pythonic => Kind::Pythonic(PythonicCalls::default()),
            Reading::Harmony => return None,
        }))
    }

    /// Takes more text and returns what is certain.
    pub fn push(&mut self, text: &str) -> Vec<CallEvent> {
        match &mut self.0 {
            Kind::Json(calls) => calls.push(text),
            Kind::Tagged(calls) => calls.push(text),
            Kind::Pythonic(calls) => calls.push(text),
        }
    }

    /// The text has ended: what is no whole call comes out as text.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        match &mut self.0 {
            Kind::Json(calls) => calls.finish(),
            Kind::Tagged(calls) => calls.finish(),
            Kind::Pythonic(calls) => calls.finish(),
        }
    }

    /// Number of calls so far.
    pub fn count(&self) -> usize {
        match &self.0 {
            Kind::Json(calls) => calls.count(),
            Kind::Tagged(calls) => calls.count(),
            Kind::Pythonic(calls) => calls.count(),
        }
    }
}

#[cfg(test)]
mod tests;

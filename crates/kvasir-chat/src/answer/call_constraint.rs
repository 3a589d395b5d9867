//! What constrained decoding guarantees of tool calls: the parser then needs no heuristics.

use crate::grammar::answer_classifier::AnswerClassifier;

/// What constrained decoding guarantees of an answer's tool calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallConstraint {
    /// Nothing.
    #[default]
    None,
    /// What begins with a start marker is a call.
    FromMarker,
    /// The answer consists of calls.
    Required,
    /// The answer consists of calls or is in the response format, as this classifier tells.
    OrFormat(AnswerClassifier),
}

//! Structured output specifications: the required form of an answer, and the parts of its grammar.
//!
//! Plain data; `lark` translates it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The required form of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Shape {
    /// Any JSON object (`json_object`).
    JsonObject,
    /// JSON that satisfies a schema.
    JsonSchema(Value),
    /// A context-free grammar in Lark's notation, or in EBNF with `::=`.
    Grammar(String),
    /// A regular expression that must match the whole answer.
    Regex(String),
    /// One of several strings.
    Choice(Vec<String>),
    /// Tool calls and nothing else.
    Calls(Calls),
}

/// The layout of a run of tool calls in one dialect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Text before the first call.
    pub begin: String,
    /// One call per tool; the model picks among them.
    pub calls: Vec<Vec<Part>>,
    /// Text between two calls; `None` if only one is allowed.
    pub separator: Option<String>,
    /// Text after the last call.
    pub end: String,
}

/// An element of a grammar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// Literal text; control tokens are written by their spelling.
    Text(String),
    /// JSON that satisfies a schema.
    Json(Value),
    /// One of these literals.
    OneOf(Vec<String>),
    /// Any text up to and including this marker.
    Until(String),
    /// Zero or one time.
    Optional(Vec<Part>),
    /// Any subset of these in their order, with a separator between two.
    Some(String, Vec<Vec<Part>>),
    /// Zero to four line breaks.
    Gap,
    /// Optional JSON white space: a space, or a line break with indentation.
    Space,
    /// A regular expression in Lark's notation.
    Regex(String),
    /// Unquoted text and the marker that ends it.
    Raw(Raw),
    /// One of these alternatives.
    Either(Vec<Vec<Part>>),
    /// Zero or more times.
    Many(Vec<Part>),
}

/// An unquoted string up to an end marker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Raw {
    /// Regular expressions in Lark's notation; the whole text must match all of them.
    pub patterns: Vec<String>,
    /// Markers that must not occur in the text.
    pub without: Vec<String>,
    /// Padding after the text, not part of it.
    pub pad: String,
    /// End marker.
    pub end: String,
}

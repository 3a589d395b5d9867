//! Marker tables of the tool call dialects: what starts, separates and ends a call.
//!
//! The parsers (`answer`) and the grammars of calls (`call_layout`, `call_syntax`) read the same
//! tables.

use crate::scan::gemma_calls::{self, QUOTE};
use crate::scan::{NamedCall, python_calls};

/// Marker table of a dialect whose call arguments are JSON.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JsonMarkers {
    /// Start markers of a call, or of a run of calls.
    pub(crate) open: &'static [&'static str],
    /// End marker. In dialects without one, anything that is not a call ends the run.
    pub(crate) close: Option<&'static str>,
    /// Decorative markers around calls, skipped.
    pub(crate) decoration: &'static [&'static str],
    /// An unmarked object at the start of the answer may be a call.
    pub(crate) unmarked: bool,
    /// Layout of one call.
    pub(crate) body: CallBody,
}

/// Layout of one call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallBody {
    /// A JSON object with name and arguments. Several may follow each other, as a list or not.
    Object,
    /// The bare name, then the arguments. `before` may precede the name; one of `between`, or the
    /// arguments directly, follows it.
    Named {
        /// Optional text before the name.
        before: &'static str,
        /// Alternatives between name and arguments.
        between: &'static [&'static str],
    },
}

/// Marker table of a dialect with one tag per argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TagMarkers {
    /// Starts a call; the name follows.
    pub(crate) open: &'static str,
    /// End markers of the name. One that begins with `<` is not consumed.
    pub(crate) name_end: &'static [&'static str],
    /// Starts an argument; the key follows.
    pub(crate) key: &'static str,
    /// Ends the key.
    pub(crate) key_end: &'static str,
    /// Starts the value.
    pub(crate) value: &'static str,
    /// Ends the value.
    pub(crate) value_end: &'static str,
    /// Ends the call.
    pub(crate) close: &'static str,
    /// Decorative markers around calls, skipped.
    pub(crate) decoration: &'static [&'static str],
    /// A value is on lines of its own: one line break on each side is padding.
    pub(crate) padded: bool,
    /// The tag of an argument says whether its value is a string.
    pub(crate) states_type: bool,
}

pub(crate) const HERMES: JsonMarkers = JsonMarkers {
    open: &["<tool_call>"],
    close: Some("</tool_call>"),
    decoration: &[],
    unmarked: false,
    body: CallBody::Object,
};

pub(crate) const LLAMA3: JsonMarkers = JsonMarkers {
    open: &["<|python_tag|>"],
    close: None,
    decoration: &[],
    unmarked: true,
    body: CallBody::Object,
};

pub(crate) const MISTRAL: JsonMarkers = JsonMarkers {
    open: &["[TOOL_CALLS]"],
    close: None,
    decoration: &[],
    unmarked: false,
    body: CallBody::Named { before: "", between: &["[CALL_ID]", "[ARGS]"] },
};

pub(crate) const DEEPSEEK: JsonMarkers = JsonMarkers {
    open: &["<｜tool▁call▁begin｜>"],
    close: Some("<｜tool▁call▁end｜>"),
    decoration: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    unmarked: false,
    body: CallBody::Named { before: "function<｜tool▁sep｜>", between: &["<｜tool▁sep｜>", "\n"] },
};

pub(crate) const KIMI_K2: JsonMarkers = JsonMarkers {
    open: &["<|tool_call_begin|>"],
    close: Some("<|tool_call_end|>"),
    decoration: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    unmarked: false,
    // The call index follows the colon after the name. The parser skips it.
    body: CallBody::Named { before: "functions.", between: &[":", "<|tool_call_argument_begin|>"] },
};

pub(crate) const PHI4: JsonMarkers = JsonMarkers {
    open: &["<|tool_call|>", "functools["],
    close: None,
    decoration: &["<|/tool_call|>"],
    unmarked: false,
    body: CallBody::Object,
};

pub(crate) const GLM: TagMarkers = TagMarkers {
    open: "<tool_call>",
    name_end: &["\n", "<arg_key>", "</tool_call>"],
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    close: "</tool_call>",
    decoration: &[],
    padded: false,
    states_type: false,
};

pub(crate) const QWEN3_CODER: TagMarkers = TagMarkers {
    open: "<function=",
    name_end: &[">"],
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    close: "</function>",
    decoration: &["<tool_call>", "</tool_call>"],
    padded: true,
    states_type: false,
};

pub(crate) const DSML: TagMarkers = TagMarkers {
    open: "<｜DSML｜invoke name=\"",
    name_end: &["\">"],
    key: "<｜DSML｜parameter name=\"",
    key_end: "\"",
    value: ">",
    value_end: "</｜DSML｜parameter>",
    close: "</｜DSML｜invoke>",
    decoration: &["<｜DSML｜function_calls>", "</｜DSML｜function_calls>"],
    padded: false,
    states_type: true,
};

/// DSML of DeepSeek-V4, which encloses calls in `tool_calls` tags instead of `function_calls`.
pub(crate) const DSML_V4: TagMarkers =
    TagMarkers { decoration: &["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"], ..DSML };

/// Starts the code fence of Python-style calls.
pub(crate) const PYTHON_FENCE: &str = "```tool_code";

/// Control tokens of harmony channels that detokenization must keep.
pub(crate) const HARMONY_MARKERS: &[&str] =
    &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"];

/// Marker table of a dialect whose calls are parsed only once they are complete.
#[derive(Debug)]
pub(crate) struct BufferedMarkers {
    /// Marker that starts the calls.
    pub(crate) open: &'static str,
    /// Marker that ends the calls.
    pub(crate) close: &'static str,
    /// Delimiters of strings, in which the end marker is text.
    pub(crate) string_delimiters: &'static [&'static str],
    /// Whether an unmarked list at the start of the answer is parsed as calls.
    pub(crate) leading_list: bool,
    /// Control tokens that detokenization must keep.
    pub(crate) control_tokens: &'static [&'static str],
    /// Parses the text between the markers. `None` if it is not a call.
    pub(crate) parse: fn(&str) -> Option<Vec<NamedCall>>,
}

pub(crate) const PYTHON: BufferedMarkers = BufferedMarkers {
    open: PYTHON_FENCE,
    close: "```",
    string_delimiters: &[],
    leading_list: true,
    control_tokens: &[],
    parse: python_calls::calls,
};

pub(crate) const LFM2: BufferedMarkers = BufferedMarkers {
    open: "<|tool_call_start|>",
    close: "<|tool_call_end|>",
    string_delimiters: &["\"", "'"],
    leading_list: false,
    control_tokens: &["<|tool_call_start|>", "<|tool_call_end|>"],
    parse: python_calls::calls,
};

pub(crate) const GEMMA4: BufferedMarkers = BufferedMarkers {
    open: "<|tool_call>",
    close: "<tool_call|>",
    string_delimiters: &[QUOTE, "\""],
    leading_list: false,
    control_tokens: &["<|tool_call>", "<tool_call|>", QUOTE],
    parse: gemma_calls::calls,
};

pub(crate) const NEMOTRON: JsonMarkers = JsonMarkers {
    open: &["<TOOLCALL>"],
    close: Some("</TOOLCALL>"),
    decoration: &[],
    unmarked: false,
    body: CallBody::Object,
};

/// How a dialect writes calls, with its marker table.
pub(crate) enum CallFormat {
    Json(&'static JsonMarkers),
    Tagged(&'static TagMarkers),
    Buffered(&'static BufferedMarkers),
    Harmony,
}

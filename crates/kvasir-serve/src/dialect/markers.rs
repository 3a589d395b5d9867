//! Marker tables of the tool call dialects: what starts, separates and ends a call.
//!
//! The parsers (`answer`) and the grammars of calls (`call_layout`) read the same tables.

/// Marker table of a dialect whose call arguments are JSON.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Start markers of a call, or of a run of calls.
    pub(crate) open: &'static [&'static str],
    /// End marker. In dialects without one, anything that is not a call ends the run.
    pub(crate) close: Option<&'static str>,
    /// Decorative markers around calls, skipped.
    pub(crate) beside: &'static [&'static str],
    /// An unmarked object at the start of the answer may be a call.
    pub(crate) bare: bool,
    /// Layout of one call.
    pub(crate) body: Body,
}

/// Layout of one call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
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
pub(crate) struct Tags {
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
    pub(crate) beside: &'static [&'static str],
    /// A value is on lines of its own: one line break on each side is padding.
    pub(crate) padded: bool,
    /// The tag of an argument says whether its value is a string.
    pub(crate) says_kind: bool,
}

pub(crate) const HERMES: Marks = Marks {
    open: &["<tool_call>"],
    close: Some("</tool_call>"),
    beside: &[],
    bare: false,
    body: Body::Object,
};

pub(crate) const LLAMA3: Marks =
    Marks { open: &["<|python_tag|>"], close: None, beside: &[], bare: true, body: Body::Object };

pub(crate) const MISTRAL: Marks = Marks {
    open: &["[TOOL_CALLS]"],
    close: None,
    beside: &[],
    bare: false,
    body: Body::Named { before: "", between: &["[CALL_ID]", "[ARGS]"] },
};

pub(crate) const DEEPSEEK: Marks = Marks {
    open: &["<｜tool▁call▁begin｜>"],
    close: Some("<｜tool▁call▁end｜>"),
    beside: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    bare: false,
    body: Body::Named { before: "function<｜tool▁sep｜>", between: &["<｜tool▁sep｜>", "\n"] },
};

pub(crate) const PHI4: Marks = Marks {
    open: &["<|tool_call|>", "functools["],
    close: None,
    beside: &["<|/tool_call|>"],
    bare: false,
    body: Body::Object,
};

pub(crate) const GLM: Tags = Tags {
    open: "<tool_call>",
    name_end: &["\n", "<arg_key>", "</tool_call>"],
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    close: "</tool_call>",
    beside: &[],
    padded: false,
    says_kind: false,
};

pub(crate) const QWEN3_CODER: Tags = Tags {
    open: "<function=",
    name_end: &[">"],
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    close: "</function>",
    beside: &["<tool_call>", "</tool_call>"],
    padded: true,
    says_kind: false,
};

pub(crate) const DSML: Tags = Tags {
    open: "<｜DSML｜invoke name=\"",
    name_end: &["\">"],
    key: "<｜DSML｜parameter name=\"",
    key_end: "\"",
    value: ">",
    value_end: "</｜DSML｜parameter>",
    close: "</｜DSML｜invoke>",
    beside: &["<｜DSML｜function_calls>", "</｜DSML｜function_calls>"],
    padded: false,
    says_kind: true,
};

/// Starts the code fence of Python-style calls.
pub(crate) const PYTHON_FENCE: &str = "```tool_code";

/// Control tokens of harmony channels that detokenization must keep.
pub(crate) const HARMONY_MARKS: &[&str] =
    &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"];

/// How a dialect writes calls, with its marker table.
pub(crate) enum Reading {
    Json(&'static Marks),
    Tagged(&'static Tags),
    Pythonic,
    Harmony,
}

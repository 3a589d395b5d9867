//! Tool call dialects: how each model family writes tool calls, for parsing and for constrained
//! decoding.
//!
//! Each `ToolDialect` provides, from one place:
//!
//! - detection from the chat template (`of_template`) and by the parser names of vLLM and SGLang
//!   (`named`);
//! - the parser's marker tables (`reading`: `Marks` for JSON, `Tags` for XML-like dialects);
//! - the control tokens that detokenization must keep (`marks`);
//! - the grammar of an answer that must be calls only (`form`, for a required `tool_choice`);
//! - the trigger syntax and grammars of calls in free text (`syntax`, for `tool_choice: auto`).
//!
//! Parser and grammar must agree: text generated under the grammar parses to a call that fits its
//! tool's schema. `grammar/call_grammars/tests.rs` checks this on random answers.

use super::{
    Bare, CallSyntax, Harmony, Next,
    call_parts::{arguments, behind, object, object_behind_brace, pythonic, tagged},
    json_calls::{Body, Marks},
    pythonic_calls::OPEN as FENCE,
    tagged_calls::Tags,
};
use crate::{
    grammar::{Calls, Part},
    request::Tool,
};

/// A tool call dialect: how a model family writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolDialect {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`: Hermes, Qwen.
    #[default]
    Hermes,
    /// `{"name": .., "parameters": ..}`, also after `<|python_tag|>`: Llama 3.
    Llama3Json,
    /// `[f(a=1)]`: Llama 3.2 and 4, Gemma (also in a `tool_code` fence).
    Pythonic,
    /// `[TOOL_CALLS][{..}]`, or `[TOOL_CALLS]name[ARGS]{..}`.
    Mistral,
    /// `name`, then arguments in a code fence, between DeepSeek's markers: V3, R1.
    DeepSeekV3,
    /// `name`, then arguments, between DeepSeek's markers: V3.1.
    DeepSeekV31,
    /// XML-like tags with DeepSeek's own prefix (DSML): V3.2.
    DeepSeekV32,
    /// `<tool_call>name<arg_key>..</arg_key><arg_value>..</arg_value></tool_call>`: GLM-4.5 and later.
    Glm45,
    /// `<function=name><parameter=key>..</parameter></function>`: Qwen3-Coder.
    Qwen3Coder,
    /// `<|tool_call|>[{..}]<|/tool_call|>` or `functools[{..}]`: Phi-4.
    Phi4,
    /// Messages to functions in harmony channels: gpt-oss.
    Harmony,
}

/// Tool parser names, as other inference engines spell them.
const NAMES: &[(&str, ToolDialect)] = &[
    ("hermes", ToolDialect::Hermes),
    ("llama3_json", ToolDialect::Llama3Json),
    ("pythonic", ToolDialect::Pythonic),
    ("mistral", ToolDialect::Mistral),
    ("deepseek_v3", ToolDialect::DeepSeekV3),
    ("deepseek_v31", ToolDialect::DeepSeekV31),
    ("deepseek_v32", ToolDialect::DeepSeekV32),
    ("glm45", ToolDialect::Glm45),
    ("qwen3_coder", ToolDialect::Qwen3Coder),
    ("phi4_mini_json", ToolDialect::Phi4),
    ("openai", ToolDialect::Harmony),
];

const HERMES: Marks = Marks {
    open: &["<tool_call>"],
    close: Some("</tool_call>"),
    beside: &[],
    bare: false,
    body: Body::Object,
};
const LLAMA3: Marks =
    Marks { open: &["<|python_tag|>"], close: None, beside: &[], bare: true, body: Body::Object };
const MISTRAL: Marks = Marks {
    open: &["[TOOL_CALLS]"],
    close: None,
    beside: &[],
    bare: false,
    body: Body::Named { before: "", between: &["[CALL_ID]", "[ARGS]"] },
};
const DEEPSEEK: Marks = Marks {
    open: &["<｜tool▁call▁begin｜>"],
    close: Some("<｜tool▁call▁end｜>"),
    beside: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    bare: false,
    body: Body::Named { before: "function<｜tool▁sep｜>", between: &["<｜tool▁sep｜>", "\n"] },
};
const PHI4: Marks = Marks {
    open: &["<|tool_call|>", "functools["],
    close: None,
    beside: &["<|/tool_call|>"],
    bare: false,
    body: Body::Object,
};
const GLM: Tags = Tags {
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
const QWEN3_CODER: Tags = Tags {
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
const DSML: Tags = Tags {
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

/// The parser of a dialect, with its marker table.
pub(super) enum Reading {
    Json(&'static Marks),
    Tagged(&'static Tags),
    Pythonic,
    Harmony,
}

impl ToolDialect {
    /// The dialect with this parser name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// All parser names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Detects the dialect from the text of a chat template; Hermes if nothing matches.
    pub fn of_template(template: &str) -> Self {
        let has = |mark: &str| template.contains(mark);
        match () {
            () if has("<|channel|>") && has("<|message|>") => Self::Harmony,
            () if has("｜DSML｜") => Self::DeepSeekV32,
            () if has("<｜tool▁calls▁begin｜>") && has("```json") => Self::DeepSeekV3,
            () if has("<｜tool▁calls▁begin｜>") => Self::DeepSeekV31,
            () if has("<arg_key>") => Self::Glm45,
            () if has("<function=") && has("<parameter=") => Self::Qwen3Coder,
            () if has("<tool_call>") => Self::Hermes,
            () if has("[TOOL_CALLS]") => Self::Mistral,
            () if has("<|tool_call|>") || has("functools") => Self::Phi4,
            () if has("<|python_tag|>") => Self::Llama3Json,
            // Templates of Llama 3.2 and 4 show the object without a marker.
            () if (has("<|start_header_id|>") || has("<|header_start|>")) && has("\"parameters\"") => {
                Self::Llama3Json
            }
            () if has("<start_of_turn>") || has("pythonic") => Self::Pythonic,
            () => Self::Hermes,
        }
    }

    pub(super) fn reading(self) -> Reading {
        match self {
            Self::Hermes => Reading::Json(&HERMES),
            Self::Llama3Json => Reading::Json(&LLAMA3),
            Self::Mistral => Reading::Json(&MISTRAL),
            Self::DeepSeekV3 | Self::DeepSeekV31 => Reading::Json(&DEEPSEEK),
            Self::Phi4 => Reading::Json(&PHI4),
            Self::Glm45 => Reading::Tagged(&GLM),
            Self::Qwen3Coder => Reading::Tagged(&QWEN3_CODER),
            Self::DeepSeekV32 => Reading::Tagged(&DSML),
            Self::Pythonic => Reading::Pythonic,
            Self::Harmony => Reading::Harmony,
        }
    }

    /// Control tokens that detokenization must keep, because they mark calls.
    pub fn marks(self) -> Vec<&'static str> {
        match self.reading() {
            Reading::Json(marks) => {
                let Body::Named { before: _, between } = &marks.body else {
                    return marks.open.iter().chain(marks.beside).copied().chain(marks.close).collect();
                };
                marks.open.iter().chain(marks.beside).chain(*between).copied().chain(marks.close).collect()
            }
            Reading::Tagged(t) => {
                let own = [t.open, t.key, t.key_end, t.value, t.value_end, t.close, "｜DSML｜"];
                own.into_iter().chain(t.beside.iter().copied()).collect()
            }
            Reading::Pythonic => Vec::new(),
            Reading::Harmony => Harmony::MARKS.to_vec(),
        }
    }

    /// Grammar parts of an answer that consists only of calls of `tools`, as this dialect writes
    /// them. With `several`, more than one call is allowed.
    pub fn form(self, tools: &[&Tool], several: bool) -> Calls {
        let (begin, separator, end) = match self {
            Self::Hermes | Self::Glm45 | Self::Qwen3Coder => ("", "\n", ""),
            Self::Llama3Json => ("", "; ", ""),
            Self::Pythonic => ("[", ", ", "]"),
            Self::Mistral => ("", "", ""),
            Self::DeepSeekV3 => ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
            Self::DeepSeekV31 => ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
            Self::DeepSeekV32 => ("<｜DSML｜function_calls>\n", "\n", "\n</｜DSML｜function_calls>"),
            Self::Phi4 => ("<|tool_call|>[", ", ", "]<|/tool_call|>"),
            // A call ends the turn, so there is no separator.
            Self::Harmony => ("", "", ""),
        };
        let several = several && self != Self::Harmony;
        Calls {
            begin: begin.into(),
            calls: tools.iter().map(|tool| self.call(tool)).collect(),
            separator: several.then(|| separator.into()),
            end: end.into(),
        }
    }

    /// Trigger syntax of calls of `tools` within free text, and the grammars that follow each
    /// trigger. With `several`, one run may hold more than one call.
    pub fn syntax(self, tools: &[&Tool], several: bool) -> CallSyntax {
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        let calls = |begin: &str, separator: &str, end: &str, one: &dyn Fn(&Tool) -> Vec<Part>| Calls {
            begin: begin.into(),
            calls: tools.iter().map(|tool| one(tool)).collect(),
            separator: (several && !separator.is_empty()).then(|| separator.into()),
            end: end.into(),
        };
        let object = |key: &'static [&'static str]| move |tool: &Tool| object(tool, key);
        // After the opening brace, which the scanner has already consumed.
        let behind_brace = |key: &'static [&'static str]| move |tool: &Tool| object_behind_brace(tool, key);
        let own = |mark: &'static str| CallSyntax {
            grammars: vec![vec![calls("", "", "", &|tool| behind(mark, self.call(tool)))]],
            openings: vec![(mark, 0)],
            ..CallSyntax::default()
        };
        let syntax = match self {
            Self::Hermes => {
                let one = |tool: &Tool| {
                    let parts = [vec![Part::Space], object(&["arguments"])(tool), vec![Part::Space]];
                    parts.into_iter().flatten().chain([Part::Text("</tool_call>".into())]).collect()
                };
                CallSyntax {
                    grammars: vec![vec![calls("", "", "", &one)]],
                    openings: vec![("<tool_call>", 0)],
                    ..CallSyntax::default()
                }
            }
            Self::Llama3Json => {
                let marked = |tool: &Tool| {
                    [Part::Space].into_iter().chain(object(&["parameters", "arguments"])(tool)).collect()
                };
                CallSyntax {
                    grammars: vec![
                        vec![calls("", "", "", &marked)],
                        vec![calls("", "", "", &behind_brace(&["parameters", "arguments"]))],
                    ],
                    openings: vec![("<|python_tag|>", 0)],
                    bare: Some((Bare::Json, 1)),
                    next: if several { Next::Bare } else { Next::Text },
                    ..CallSyntax::default()
                }
            }
            Self::Pythonic => {
                let call = |tool: &Tool| self.call(tool);
                let printed = |tool: &Tool| {
                    let before = Part::Text("print(".into());
                    [before].into_iter().chain(self.call(tool)).chain([Part::Text(")".into())]).collect()
                };
                CallSyntax {
                    grammars: vec![
                        vec![calls("", ", ", "]", &call)],
                        vec![
                            calls("\n", "\n", "\n```", &call),
                            calls("\n", "", "\n```", &printed),
                            calls("\n[", ", ", "]\n```", &call),
                        ],
                    ],
                    openings: vec![(FENCE, 1)],
                    bare: Some((Bare::Python, 0)),
                    ..CallSyntax::default()
                }
            }
            Self::Mistral => {
                let named = |tool: &Tool| {
                    let id = vec![Part::Text("[CALL_ID]".into()), Part::Regex("[a-zA-Z0-9]{1,32}".into())];
                    let mark = vec![Part::Text("[ARGS]".into())];
                    let name = Part::Text(tool.name.clone());
                    vec![name, Part::Optional(id), Part::Optional(mark), Part::Json(arguments(tool))]
                };
                let listed = |tool: &Tool| {
                    let mut parts = object(&["arguments"])(tool);
                    let id = [",", "\"id\"", ":"]
                        .into_iter()
                        .flat_map(|text| [Part::Space, Part::Text(text.into())]);
                    let value = [Part::Space, Part::Regex("\"[a-zA-Z0-9]{1,32}\"".into())];
                    // Between the arguments and the closing brace.
                    parts.insert(parts.len() - 2, Part::Optional(id.chain(value).collect()));
                    parts
                };
                CallSyntax {
                    grammars: vec![
                        vec![
                            calls("", "", "", &named),
                            calls("[", ", ", "]", &listed),
                            calls(" [", ", ", "]", &listed),
                        ],
                        vec![calls("", "", "", &behind_brace(&["arguments"]))],
                    ],
                    openings: vec![("[TOOL_CALLS]", 0)],
                    next: Next::Call(1),
                    ..CallSyntax::default()
                }
            }
            Self::Phi4 => CallSyntax {
                grammars: vec![
                    vec![calls("[", ", ", "]", &object(&["arguments"]))],
                    vec![calls("", ", ", "]", &object(&["arguments"]))],
                    vec![calls("", "", "", &behind_brace(&["arguments"]))],
                ],
                openings: vec![("<|tool_call|>", 0), ("functools[", 1)],
                next: Next::Call(2),
                ..CallSyntax::default()
            },
            Self::Harmony => {
                let one = |tool: &Tool| {
                    let text = |text: &str| Part::Text(text.into());
                    let (constrain, kind) = (text("<|constrain|>"), Part::Regex("(json|code)?".into()));
                    vec![
                        text(&tool.name),
                        Part::Optional(vec![text("<|channel|>commentary")]),
                        // The name ends at a space or a marker.
                        Part::Optional(vec![Part::Either(vec![
                            vec![text(" "), Part::Optional(vec![constrain.clone()]), kind.clone()],
                            vec![constrain, kind],
                        ])]),
                        text("<|message|>"),
                        Part::Json(arguments(tool)),
                    ]
                };
                CallSyntax {
                    grammars: vec![vec![calls("", "", "", &one)]],
                    channels: true,
                    ..CallSyntax::default()
                }
            }
            Self::DeepSeekV3 | Self::DeepSeekV31 => own(DEEPSEEK.open[0]),
            Self::DeepSeekV32 => own(DSML.open),
            Self::Glm45 => own(GLM.open),
            Self::Qwen3Coder => own(QWEN3_CODER.open),
        };
        let beside = match self.reading() {
            Reading::Json(marks) => marks.beside,
            Reading::Tagged(tags) => tags.beside,
            Reading::Pythonic | Reading::Harmony => &[],
        };
        CallSyntax { beside: beside.to_vec(), names, ..syntax }
    }

    fn call(self, tool: &Tool) -> Vec<Part> {
        let name = &tool.name;
        let schema = arguments(tool);
        let around = |before: String, after: &str| {
            vec![Part::Text(before), Part::Json(schema.clone()), Part::Text(after.into())]
        };
        let object = |key: &str| format!("{{\"name\": \"{name}\", \"{key}\": ");
        match self {
            Self::Hermes => around(format!("<tool_call>\n{}", object("arguments")), "}\n</tool_call>"),
            Self::Llama3Json => around(object("parameters"), "}"),
            Self::Phi4 => around(object("arguments"), "}"),
            Self::Mistral => vec![Part::Text(format!("[TOOL_CALLS]{name}[ARGS]")), Part::Json(schema)],
            Self::DeepSeekV3 => around(
                format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"),
                "\n```<｜tool▁call▁end｜>",
            ),
            Self::DeepSeekV31 => {
                around(format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>"), "<｜tool▁call▁end｜>")
            }
            Self::Harmony => vec![
                Part::Text(format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>")),
                Part::Json(schema),
            ],
            Self::Glm45 => tagged(&GLM, &format!("<tool_call>{name}"), "</tool_call>", &schema, |key, _| {
                vec![Part::Text(format!("<arg_key>{key}</arg_key>")), Part::Gap, Part::Text(GLM.value.into())]
            }),
            Self::Qwen3Coder => {
                let open = format!("<tool_call>\n<function={name}>");
                tagged(&QWEN3_CODER, &open, "</function>\n</tool_call>", &schema, |key, _| {
                    vec![Part::Text(format!("<parameter={key}>\n"))]
                })
            }
            Self::DeepSeekV32 => {
                let open = format!("<｜DSML｜invoke name=\"{name}\">");
                tagged(&DSML, &open, "</｜DSML｜invoke>", &schema, |key, is_text| {
                    vec![Part::Text(format!("<｜DSML｜parameter name=\"{key}\" string=\"{is_text}\">"))]
                })
            }
            Self::Pythonic => pythonic(name, &schema),
        }
    }
}

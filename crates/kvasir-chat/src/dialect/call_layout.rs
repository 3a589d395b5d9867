//! How each dialect writes tool calls, as grammars: answers that consist of calls only, and calls
//! in free text with the triggers that start them.
//!
//! Parser and grammar must agree: text generated under the grammar parses to a call that fits its
//! tool's schema. `grammar/call_grammars/tests.rs` checks this on random answers.

use crate::dialect::call_parts::{
    after, arguments, gemma_arguments, object, object_after_brace, pythonic, tagged,
};
use crate::dialect::markers::{
    CallFormat, DEEPSEEK, DSML, GEMMA4, GLM, KIMI_K2, LFM2, NEMOTRON, PYTHON_FENCE, QWEN3_CODER,
};
use crate::dialect::tool_calls::ToolDialect;
use crate::grammar::call_scanner::{CallSyntax, NextObject, Unmarked};
use crate::grammar::spec::{Calls, Part};
use crate::tool::Tool;

impl ToolDialect {
    /// Grammar parts of an answer that consists only of calls of `tools`, as this dialect writes
    /// them. With `several`, more than one call is allowed.
    pub fn calls_only(self, tools: &[&Tool], several: bool) -> Calls {
        let (begin, separator, end) = match self {
            Self::Hermes | Self::Glm45 | Self::Qwen3Coder => ("", "\n", ""),
            Self::Llama3Json => ("", "; ", ""),
            Self::Pythonic => ("[", ", ", "]"),
            Self::Lfm2 => ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
            Self::Nemotron => ("<TOOLCALL>[", ", ", "]</TOOLCALL>"),
            Self::Gemma4 => ("", "", ""),
            Self::Mistral => ("", "", ""),
            Self::DeepSeekV3 => ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
            Self::DeepSeekV31 => ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
            Self::DeepSeekV32 => ("<｜DSML｜function_calls>\n", "\n", "\n</｜DSML｜function_calls>"),
            Self::KimiK2 => ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
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
        let after_brace = |key: &'static [&'static str]| move |tool: &Tool| object_after_brace(tool, key);
        let own = |mark: &'static str| CallSyntax {
            grammars: vec![vec![calls("", "", "", &|tool| after(mark, self.call(tool)))]],
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
                        vec![calls("", "", "", &after_brace(&["parameters", "arguments"]))],
                    ],
                    openings: vec![("<|python_tag|>", 0)],
                    unmarked: Some((Unmarked::Json, 1)),
                    next: if several { NextObject::Unmarked } else { NextObject::Text },
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
                    openings: vec![(PYTHON_FENCE, 1)],
                    unmarked: Some((Unmarked::Python, 0)),
                    ..CallSyntax::default()
                }
            }
            Self::Lfm2 => {
                let call = |tool: &Tool| self.call(tool);
                CallSyntax {
                    grammars: vec![vec![calls("[", ", ", "]<|tool_call_end|>", &call)]],
                    openings: vec![(LFM2.open, 0)],
                    ..CallSyntax::default()
                }
            }
            Self::Nemotron => {
                let one = object(&["arguments"]);
                CallSyntax {
                    grammars: vec![vec![calls("[", ", ", "]</TOOLCALL>", &one)]],
                    openings: vec![(NEMOTRON.open[0], 0)],
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
                        vec![calls("", "", "", &after_brace(&["arguments"]))],
                    ],
                    openings: vec![("[TOOL_CALLS]", 0)],
                    next: NextObject::Call(1),
                    ..CallSyntax::default()
                }
            }
            Self::Phi4 => CallSyntax {
                grammars: vec![
                    vec![calls("[", ", ", "]", &object(&["arguments"]))],
                    vec![calls("", ", ", "]", &object(&["arguments"]))],
                    vec![calls("", "", "", &after_brace(&["arguments"]))],
                ],
                openings: vec![("<|tool_call|>", 0), ("functools[", 1)],
                next: NextObject::Call(2),
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
            Self::KimiK2 => own(KIMI_K2.open[0]),
            Self::Glm45 => own(GLM.open),
            Self::Qwen3Coder => own(QWEN3_CODER.open),
            Self::Gemma4 => own(GEMMA4.open),
        };
        let decoration = match self.call_format() {
            CallFormat::Json(marks) => marks.decoration,
            CallFormat::Tagged(tags) => tags.decoration,
            CallFormat::Buffered(_) | CallFormat::Harmony => &[],
        };
        CallSyntax { decoration: decoration.to_vec(), names, ..syntax }
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
            Self::KimiK2 => vec![
                Part::Text(format!("<|tool_call_begin|>functions.{name}:")),
                Part::Regex("[0-9]{1,4}".into()),
                Part::Text("<|tool_call_argument_begin|>".into()),
                Part::Json(schema),
                Part::Text("<|tool_call_end|>".into()),
            ],
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
            Self::Pythonic | Self::Lfm2 => pythonic(name, &schema),
            Self::Nemotron => around(object("arguments"), "}"),
            Self::Gemma4 => {
                let open = Part::Text(format!("{}call:{name}", GEMMA4.open));
                let close = Part::Text(GEMMA4.close.into());
                [open].into_iter().chain(gemma_arguments(&schema)).chain([close]).collect()
            }
        }
    }
}

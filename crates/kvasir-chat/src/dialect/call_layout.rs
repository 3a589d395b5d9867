//! How each dialect writes tool calls, as grammars of answers that consist of calls only.
//! `call_syntax.rs` has the grammars of calls in free text.
//!
//! Parser and grammar must agree: text generated under the grammar parses to a call that fits its
//! tool's schema. `grammar/call_grammars/tests/random_answers.rs` checks this.

use crate::dialect::call_parts::{arguments, gemma_arguments, pythonic, tagged};
use crate::dialect::markers::{DSML, DSML_V4, GEMMA4, GLM, QWEN3_CODER};
use crate::dialect::tool_calls::ToolDialect;
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
            Self::DeepSeekV4 => ("<｜DSML｜tool_calls>\n", "\n", "\n</｜DSML｜tool_calls>"),
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

    /// Grammar parts of one call of `tool`, including its markers.
    pub(super) fn call(self, tool: &Tool) -> Vec<Part> {
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
            Self::DeepSeekV32 | Self::DeepSeekV4 => {
                let tags = if self == Self::DeepSeekV32 { &DSML } else { &DSML_V4 };
                let open = format!("<｜DSML｜invoke name=\"{name}\">");
                tagged(tags, &open, "</｜DSML｜invoke>", &schema, |key, is_text| {
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

//! Grammars of tool calls in free text: the markers that start a call, and the grammar that follows
//! each marker.
//!
//! Parser and grammar must agree (see `call_layout.rs`).

use crate::dialect::call_parts::{after, arguments, object, object_after_brace};
use crate::dialect::markers::{
    CallFormat, DEEPSEEK, DSML, GEMMA4, GLM, KIMI_K2, LFM2, NEMOTRON, PYTHON_FENCE, QWEN3_CODER,
};
use crate::dialect::tool_calls::ToolDialect;
use crate::grammar::call_scanner::{CallSyntax, NextObject, Unmarked};
use crate::grammar::spec::{Calls, Part};
use crate::tool::Tool;

impl ToolDialect {
    /// Trigger syntax of calls of `tools` within free text, and the grammars that follow each
    /// trigger. With `several`, more than one call may follow a trigger.
    pub fn syntax(self, tools: &[&Tool], several: bool) -> CallSyntax {
        let builder = SyntaxBuilder { tools, several };
        let syntax = match self {
            Self::Hermes => builder.hermes(),
            Self::Llama3Json => builder.llama3_json(),
            Self::Pythonic => builder.pythonic(),
            Self::Lfm2 => {
                let calls = builder.calls("[", ", ", "]<|tool_call_end|>", |tool| self.call(tool));
                builder.after_marker(LFM2.open, calls)
            }
            Self::Nemotron => {
                let calls = builder.calls("[", ", ", "]</TOOLCALL>", call_object);
                builder.after_marker(NEMOTRON.open[0], calls)
            }
            Self::Mistral => builder.mistral(),
            Self::Phi4 => builder.phi4(),
            Self::Harmony => builder.harmony(),
            Self::DeepSeekV3 | Self::DeepSeekV31 => builder.single_call(self, DEEPSEEK.open[0]),
            Self::DeepSeekV32 | Self::DeepSeekV4 => builder.single_call(self, DSML.open),
            Self::KimiK2 => builder.single_call(self, KIMI_K2.open[0]),
            Self::Glm45 => builder.single_call(self, GLM.open),
            Self::Qwen3Coder => builder.single_call(self, QWEN3_CODER.open),
            Self::Gemma4 => builder.single_call(self, GEMMA4.open),
        };
        let decoration = match self.call_format() {
            CallFormat::Json(marks) => marks.decoration,
            CallFormat::Tagged(tags) => tags.decoration,
            CallFormat::Buffered(_) | CallFormat::Harmony => &[],
        };
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        CallSyntax { decoration: decoration.to_vec(), names, ..syntax }
    }
}

/// Grammar parts of a call as a JSON object with the arguments under the key `arguments`.
fn call_object(tool: &Tool) -> Vec<Part> {
    object(tool, &["arguments"])
}

/// Builds the trigger syntax of one request's tools.
#[derive(Clone, Copy)]
struct SyntaxBuilder<'a> {
    /// The tools offered in the request.
    tools: &'a [&'a Tool],
    /// Whether more than one call may follow a trigger.
    several: bool,
}

impl SyntaxBuilder<'_> {
    /// Calls between `begin` and `end`; `call` returns the grammar parts of one of them.
    fn calls(self, begin: &str, separator: &str, end: &str, call: impl Fn(&Tool) -> Vec<Part>) -> Calls {
        Calls {
            begin: begin.into(),
            calls: self.tools.iter().map(|tool| call(tool)).collect(),
            separator: (self.several && !separator.is_empty()).then(|| separator.into()),
            end: end.into(),
        }
    }

    /// The syntax of a dialect with a single trigger: `calls` follow the marker `open`.
    fn after_marker(self, open: &'static str, calls: Calls) -> CallSyntax {
        CallSyntax { grammars: vec![vec![calls]], openings: vec![(open, 0)], ..CallSyntax::default() }
    }

    /// The syntax of a dialect whose every call begins with the marker `open`.
    fn single_call(self, dialect: ToolDialect, open: &'static str) -> CallSyntax {
        self.after_marker(open, self.calls("", "", "", |tool| after(open, dialect.call(tool))))
    }

    /// A JSON call object after its opening brace, which the scanner has already consumed.
    fn after_brace(self, keys: &'static [&'static str]) -> Vec<Calls> {
        vec![self.calls("", "", "", |tool| object_after_brace(tool, keys))]
    }

    fn hermes(self) -> CallSyntax {
        let one = |tool: &Tool| {
            let parts = [vec![Part::Space], call_object(tool), vec![Part::Space]];
            parts.into_iter().flatten().chain([Part::Text("</tool_call>".into())]).collect()
        };
        self.after_marker("<tool_call>", self.calls("", "", "", one))
    }

    fn llama3_json(self) -> CallSyntax {
        const KEYS: &[&str] = &["parameters", "arguments"];
        let marked = |tool: &Tool| [Part::Space].into_iter().chain(object(tool, KEYS)).collect();
        CallSyntax {
            grammars: vec![vec![self.calls("", "", "", marked)], self.after_brace(KEYS)],
            openings: vec![("<|python_tag|>", 0)],
            unmarked: Some((Unmarked::Json, 1)),
            next: if self.several { NextObject::Unmarked } else { NextObject::Text },
            ..CallSyntax::default()
        }
    }

    fn pythonic(self) -> CallSyntax {
        let call = |tool: &Tool| ToolDialect::Pythonic.call(tool);
        let printed = |tool: &Tool| {
            let before = Part::Text("print(".into());
            [before].into_iter().chain(call(tool)).chain([Part::Text(")".into())]).collect()
        };
        CallSyntax {
            grammars: vec![
                vec![self.calls("", ", ", "]", call)],
                vec![
                    self.calls("\n", "\n", "\n```", call),
                    self.calls("\n", "", "\n```", printed),
                    self.calls("\n[", ", ", "]\n```", call),
                ],
            ],
            openings: vec![(PYTHON_FENCE, 1)],
            unmarked: Some((Unmarked::Python, 0)),
            ..CallSyntax::default()
        }
    }

    fn mistral(self) -> CallSyntax {
        let named = |tool: &Tool| {
            let id = vec![Part::Text("[CALL_ID]".into()), Part::Regex("[a-zA-Z0-9]{1,32}".into())];
            let mark = vec![Part::Text("[ARGS]".into())];
            let name = Part::Text(tool.name.clone());
            vec![name, Part::Optional(id), Part::Optional(mark), Part::Json(arguments(tool))]
        };
        let listed = |tool: &Tool| {
            let mut parts = call_object(tool);
            let id = [",", "\"id\"", ":"].into_iter().flat_map(|text| [Part::Space, Part::Text(text.into())]);
            let value = [Part::Space, Part::Regex("\"[a-zA-Z0-9]{1,32}\"".into())];
            // Between the arguments and the closing brace.
            parts.insert(parts.len() - 2, Part::Optional(id.chain(value).collect()));
            parts
        };
        let marked = vec![
            self.calls("", "", "", named),
            self.calls("[", ", ", "]", listed),
            self.calls(" [", ", ", "]", listed),
        ];
        CallSyntax {
            grammars: vec![marked, self.after_brace(&["arguments"])],
            openings: vec![("[TOOL_CALLS]", 0)],
            next: NextObject::Call(1),
            ..CallSyntax::default()
        }
    }

    fn phi4(self) -> CallSyntax {
        CallSyntax {
            grammars: vec![
                vec![self.calls("[", ", ", "]", call_object)],
                vec![self.calls("", ", ", "]", call_object)],
                self.after_brace(&["arguments"]),
            ],
            openings: vec![("<|tool_call|>", 0), ("functools[", 1)],
            next: NextObject::Call(2),
            ..CallSyntax::default()
        }
    }

    fn harmony(self) -> CallSyntax {
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
            grammars: vec![vec![self.calls("", "", "", one)]],
            channels: true,
            ..CallSyntax::default()
        }
    }
}

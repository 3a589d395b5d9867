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
//! tool's schema. `form/call_grammars/tests.rs` checks this on random answers.

use super::{
    Bare, CallSyntax, Harmony, Next,
    json_calls::{Body, Marks},
    pythonic_calls::OPEN as FENCE,
    schema::admits,
    tagged_calls::Tags,
};
use crate::{
    grammar::{Calls, Part, Raw, text_patterns},
    request::Tool,
};
use serde_json::{Value, json};

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

/// Whether the schema of a tool's arguments admits objects, possibly among other types.
pub(crate) fn takes_objects(tool: &Tool) -> bool {
    let schema = tool.parameters.as_ref().map(|schema| resolved(schema, schema));
    schema.is_none_or(|schema| match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
        kind => kind == "object",
    })
}

/// The schema of a tool's arguments, restricted to objects if it admits objects.
fn arguments(tool: &Tool) -> Value {
    let Some(schema) = &tool.parameters else { return json!({"type": "object"}) };
    let mut schema = resolved(schema, schema);
    if let (true, Some(map)) = (takes_objects(tool), schema.as_object_mut())
        && !map.contains_key("$ref")
    {
        map.insert("type".into(), "object".into());
    }
    schema
}

/// Resolves a chain of local `$ref`s, and keeps the definitions of `root`.
fn resolved(root: &Value, schema: &Value) -> Value {
    let mut found = schema;
    for _ in 0..LONGEST_CHAIN {
        let reference = found["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
        let Some(next) = reference.and_then(|path| root.pointer(path)) else { break };
        found = next;
    }
    let mut found = found.clone();
    for definitions in ["$defs", "definitions"] {
        if let (Some(map), Some(all)) = (found.as_object_mut(), root.get(definitions)) {
            map.entry(definitions).or_insert_with(|| all.clone());
        }
    }
    found
}

/// Longest chain of `$ref`s that is followed.
const LONGEST_CHAIN: usize = 8;

/// The parts of a call after the marker `mark`.
fn behind(mark: &str, mut parts: Vec<Part>) -> Vec<Part> {
    if let Some(Part::Text(first)) = parts.first_mut()
        && let Some((_, rest)) = first.split_once(mark)
    {
        *first = rest.to_owned();
    }
    parts
}

/// Grammar parts of a call as a JSON object, with the arguments under one of `keys`.
fn object(tool: &Tool, keys: &[&str]) -> Vec<Part> {
    [Part::Text("{".into())].into_iter().chain(object_behind_brace(tool, keys)).collect()
}

/// Grammar parts of a JSON call object after its opening brace. The white space before the closing
/// brace is a part of its own.
fn object_behind_brace(tool: &Tool, keys: &[&str]) -> Vec<Part> {
    let text = |text: &str| Part::Text(text.into());
    let key = match keys {
        [one] => text(&format!("\"{one}\"")),
        _ => Part::OneOf(keys.iter().map(|key| format!("\"{key}\"")).collect()),
    };
    let name = text(&format!("\"{}\"", tool.name));
    let before = [text("\"name\""), text(":"), name, text(","), key, text(":"), Part::Json(arguments(tool))];
    before.into_iter().chain([text("}")]).flat_map(|part| [Part::Space, part]).collect()
}

/// Properties of an argument schema: key, schema with `$defs` attached, and whether it is required.
fn properties(schema: &Value) -> impl Iterator<Item = (&String, Value, bool)> {
    let required =
        |key: &str| schema["required"].as_array().is_some_and(|keys| keys.iter().any(|k| k == key));
    let list = schema["properties"].as_object().into_iter().flatten();
    list.map(move |(key, property)| {
        let mut property = property.clone();
        for definitions in ["$defs", "definitions"] {
            if let (Some(map), Some(found)) = (property.as_object_mut(), schema.get(definitions)) {
                map.insert(definitions.into(), found.clone());
            }
        }
        (key, property, required(key))
    })
}

/// The strings of an `enum` or `const`, if it lists only strings.
fn listed(schema: &Value) -> Option<Vec<String>> {
    let texts = match (schema.get("const"), schema.get("enum")) {
        (Some(text), _) => vec![text.as_str()],
        (None, Some(list)) => list.as_array()?.iter().map(Value::as_str).collect(),
        (None, None) => return None,
    };
    texts.into_iter().map(|text| text.map(str::to_owned)).collect()
}

/// How an argument value is written inside a tag.
enum Tagged {
    /// An unquoted string that matches all of these regular expressions.
    Text(Vec<String>),
    /// One of these strings, unquoted.
    Listed(Vec<String>),
    /// A JSON value of this schema.
    Json(Value),
}

/// The ways to write values of a schema inside a tag. With `says_kind`, the tag states whether it
/// holds a string. Otherwise the parser reads anything that is not other JSON as a string, so
/// strings are never quoted.
fn ways(property: &Value, says_kind: bool) -> Vec<Tagged> {
    let schema = resolved(property, property);
    if let Some(texts) = listed(&schema) {
        return vec![Tagged::Listed(texts)];
    }
    if schema["type"] == "string" {
        return vec![Tagged::Text(text_patterns(&schema))];
    }
    if says_kind || !admits(property, property, &Value::from("")) {
        return vec![Tagged::Json(property.clone())];
    }
    if let Some(values) = schema["enum"].as_array() {
        let written = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        return vec![Tagged::Listed(values.iter().map(written).collect())];
    }
    if let Some(kinds) = schema["type"].as_array() {
        let others: Vec<Value> = kinds.iter().filter(|kind| *kind != "string").cloned().collect();
        let mut rest = schema.clone();
        rest["type"] = others.clone().into();
        let rest = (!others.is_empty()).then_some(Tagged::Json(rest));
        return [Tagged::Text(text_patterns(&schema))].into_iter().chain(rest).collect();
    }
    let options = ["anyOf", "oneOf"].iter().find_map(|key| schema[*key].as_array());
    let single = |option: &Value| match resolved(&schema, option) {
        text if text["type"] == "string" && listed(&text).is_none() => Tagged::Text(text_patterns(&text)),
        other => match listed(&other) {
            Some(texts) => Tagged::Listed(texts),
            None => Tagged::Json(other),
        },
    };
    match options {
        Some(options) => options.iter().map(single).collect(),
        None => vec![Tagged::Text(Vec::new())],
    }
}

/// Grammar parts of a call with one tag per argument: strings unquoted, all else as JSON. Models of
/// one family differ in the line breaks between tags, hence `Part::Gap`.
fn tagged(
    tags: &Tags,
    open: &str,
    close: &str,
    schema: &Value,
    before: impl Fn(&str, bool) -> Vec<Part>,
) -> Vec<Part> {
    let mut parts = vec![Part::Text(open.into()), Part::Gap];
    let pad = if tags.padded { "\n" } else { "" };
    let closing = tags.beside.iter().filter(|mark| mark.starts_with("</"));
    let without = [tags.key, tags.close, tags.open, tags.value_end].into_iter().chain(closing.copied());
    let without: Vec<String> = without.map(str::to_owned).collect();
    let text = |patterns: Vec<String>| {
        // Any marker that the parser takes for the end ends a string. With a pattern, the padding
        // line break is not part of the match.
        let pad = if patterns.is_empty() { "" } else { pad };
        Part::Raw(Raw { patterns, without: without.clone(), pad: pad.into(), end: tags.value_end.into() })
    };
    let end = Part::Text(format!("{pad}{}", tags.value_end));
    let value = |way: Tagged| match way {
        Tagged::Text(patterns) => (true, vec![text(patterns)]),
        Tagged::Listed(texts) => (true, vec![Part::OneOf(texts), end.clone()]),
        Tagged::Json(schema) => (false, vec![Part::Json(schema), end.clone()]),
    };
    for (key, property, required) in properties(schema) {
        let says_kind = tags.value == DSML.value;
        let mut pairs: Vec<Vec<Part>> = Vec::new();
        for way in ways(&property, says_kind) {
            let (is_text, value) = value(way);
            pairs.push(before(key, is_text).into_iter().chain(value).chain([Part::Gap]).collect());
        }
        let pair = if pairs.len() == 1 { pairs.pop().unwrap_or_default() } else { vec![Part::Either(pairs)] };
        match required {
            true => parts.extend(pair),
            false => parts.push(Part::Optional(pair)),
        }
    }
    if takes_any(schema) {
        let any = before(ANY_KEY, true).into_iter().flat_map(with_any_key);
        parts.push(Part::Many(any.chain([text(Vec::new()), Part::Gap]).collect()));
    }
    parts.push(Part::Text(close.into()));
    parts
}

/// Placeholder for an argument name that the schema does not list.
const ANY_KEY: &str = "\u{fdd2}";

/// Replaces `ANY_KEY` in a part by the pattern of argument names.
fn with_any_key(part: Part) -> Vec<Part> {
    let split = match &part {
        Part::Text(text) => text.split_once(ANY_KEY),
        _ => None,
    };
    match split {
        Some((before, after)) => {
            vec![Part::Text(before.into()), Part::Regex(KEY.into()), Part::Text(after.into())]
        }
        None => vec![part],
    }
}

/// Pattern of an argument name that the schema does not list.
const KEY: &str = "[A-Za-z_][A-Za-z0-9_]{0,40}";

/// Whether arguments may have arbitrary names: no `properties`, and `additionalProperties` is not
/// false.
fn takes_any(schema: &Value) -> bool {
    schema.get("properties").is_none() && schema.get("additionalProperties") != Some(&Value::Bool(false))
}

/// Grammar parts of a Python call: required arguments, then optional ones; values as JSON.
fn pythonic(name: &str, schema: &Value) -> Vec<Part> {
    let argument = |(key, property, _): (&String, Value, bool)| {
        vec![Part::Text(format!("{key}=")), Part::Json(property)]
    };
    let (needed, free): (Vec<_>, Vec<_>) = properties(schema).partition(|(_, _, required)| *required);
    let comma = || Part::Text(", ".into());
    let mut parts = vec![Part::Text(format!("{name}("))];
    if takes_any(schema) {
        let any = [Part::Regex(KEY.into()), Part::Text("=".into()), Part::Json(json!({}))];
        let more = [comma()].into_iter().chain(any.clone()).collect();
        parts.push(Part::Optional(any.into_iter().chain([Part::Many(more)]).collect()));
    } else if needed.is_empty() {
        parts.push(Part::Some(", ".into(), free.into_iter().map(argument).collect()));
    } else {
        for (n, one) in needed.into_iter().map(argument).enumerate() {
            parts.extend((n > 0).then(comma).into_iter().chain(one));
        }
        let free = free.into_iter().map(argument);
        parts.extend(free.map(|one| Part::Optional([comma()].into_iter().chain(one).collect())));
    }
    parts.push(Part::Text(")".into()));
    parts
}

use super::{
    Harmony,
    json_calls::{Body, Marks},
    tagged_calls::Tags,
};
use crate::{
    form::{Calls, Part},
    request::Tool,
};
use serde_json::{Value, json};

/// How a family of models writes calls of tools.
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
    /// `name`, then arguments in a fence between DeepSeek's marks: V3, R1.
    DeepSeekV3,
    /// `name`, then arguments between DeepSeek's marks: V3.1.
    DeepSeekV31,
    /// Tags with DeepSeek's own prefix: V3.2.
    DeepSeekV32,
    /// `<tool_call>name<arg_key>..</arg_key><arg_value>..</arg_value></tool_call>`: GLM-4.5 and later.
    Glm45,
    /// `<function=name><parameter=key>..</parameter></function>`: Qwen3-Coder.
    Qwen3Coder,
    /// `<|tool_call|>[{..}]<|/tool_call|>` or `functools[{..}]`: Phi-4.
    Phi4,
    /// Messages to functions in channels: gpt-oss.
    Harmony,
}

/// Every dialect under the name that other engines know it by.
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
    open: &["<|tool_call|>", "functools"],
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

/// How a dialect is read.
pub(super) enum Reading {
    Json(&'static Marks),
    Tagged(&'static Tags),
    Pythonic,
    Harmony,
}

impl ToolDialect {
    /// The dialect of this name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The dialect that a chat template teaches its model.
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
            // Those of Llama 3.2 and 4 show the object and name no mark.
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

    /// Control tokens that must stay in an answer's text, because calls are marked by them.
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

    /// The form of an answer that consists of calls of `tools` as a model of this dialect writes them.
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
            // A call ends the turn.
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

    fn call(self, tool: &Tool) -> Vec<Part> {
        let name = &tool.name;
        let schema = tool.parameters.clone().unwrap_or_else(|| json!({"type": "object"}));
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

/// The properties of a schema of arguments: key, schema, whether it must be there. Definitions go along with each.
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

/// The texts that a schema lists, if it lists nothing else.
fn listed(schema: &Value) -> Option<Vec<String>> {
    let texts = match (schema.get("const"), schema.get("enum")) {
        (Some(text), _) => vec![text.as_str()],
        (None, Some(list)) => list.as_array()?.iter().map(Value::as_str).collect(),
        (None, None) => return None,
    };
    texts.into_iter().map(|text| text.map(str::to_owned)).collect()
}

/// Whether values that fit a schema are texts, which tags hold without quotes.
fn is_text(schema: &Value) -> bool {
    schema["type"] == "string" || listed(schema).is_some()
}

/// A call whose arguments stand in tags: texts as they are, everything else as JSON. Models of one family differ in the line ends between tags.
fn tagged(
    tags: &Tags,
    open: &str,
    close: &str,
    schema: &Value,
    before: impl Fn(&str, bool) -> Vec<Part>,
) -> Vec<Part> {
    let mut parts = vec![Part::Text(open.into()), Part::Gap];
    let end = format!("{}{}", if tags.padded { "\n" } else { "" }, tags.value_end);
    for (key, property, required) in properties(schema) {
        let is_text = is_text(&property);
        let mut pair = before(key, is_text);
        match (is_text, listed(&property)) {
            (true, Some(texts)) => pair.extend([Part::OneOf(texts), Part::Text(end.clone())]),
            // Whatever the reader takes for the end ends it, on a line of its own or not.
            (true, None) => pair.push(Part::Until(tags.value_end.into())),
            (false, _) => pair.extend([Part::Json(property), Part::Text(end.clone())]),
        }
        pair.push(Part::Gap);
        match required {
            true => parts.extend(pair),
            false => parts.push(Part::Optional(pair)),
        }
    }
    parts.push(Part::Text(close.into()));
    parts
}

/// A call as Python writes it, with the arguments that must be there and then those that may; values as JSON.
fn pythonic(name: &str, schema: &Value) -> Vec<Part> {
    let argument = |(key, property, _): (&String, Value, bool)| {
        vec![Part::Text(format!("{key}=")), Part::Json(property)]
    };
    let (needed, free): (Vec<_>, Vec<_>) = properties(schema).partition(|(_, _, required)| *required);
    let comma = || Part::Text(", ".into());
    let mut parts = vec![Part::Text(format!("{name}("))];
    if needed.is_empty() {
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

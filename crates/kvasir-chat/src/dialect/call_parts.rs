//! Grammar parts of a tool call, from the JSON schema of the tool's arguments: as a JSON object, as
//! one tag per argument, or as a Python call.
//!
//! `call_layout` and `call_syntax` put a dialect's markers around them.

use crate::dialect::markers::{GEMMA4, TagMarkers};
use crate::dialect::schema_types::admits;
use crate::grammar::lark::text_patterns;
use crate::grammar::spec::{Part, Raw};
use crate::scan::gemma_calls::QUOTE;
use crate::tool::Tool;
use serde_json::{Value, json};

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
pub(crate) fn arguments(tool: &Tool) -> Value {
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
    for _ in 0..MAX_REFERENCES {
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
const MAX_REFERENCES: usize = 8;

/// The parts of a call after the marker `mark`.
pub(crate) fn after(mark: &str, mut parts: Vec<Part>) -> Vec<Part> {
    if let Some(Part::Text(first)) = parts.first_mut()
        && let Some((_, rest)) = first.split_once(mark)
    {
        *first = rest.to_owned();
    }
    parts
}

/// Grammar parts of a call as a JSON object, with the arguments under one of `keys`.
pub(crate) fn object(tool: &Tool, keys: &[&str]) -> Vec<Part> {
    [Part::Text("{".into())].into_iter().chain(object_after_brace(tool, keys)).collect()
}

/// Grammar parts of a JSON call object after its opening brace. The white space before the closing
/// brace is a part of its own.
pub(crate) fn object_after_brace(tool: &Tool, keys: &[&str]) -> Vec<Part> {
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
fn string_options(schema: &Value) -> Option<Vec<String>> {
    let texts = match (schema.get("const"), schema.get("enum")) {
        (Some(text), _) => vec![text.as_str()],
        (None, Some(list)) => list.as_array()?.iter().map(Value::as_str).collect(),
        (None, None) => return None,
    };
    texts.into_iter().map(|text| text.map(str::to_owned)).collect()
}

/// How an argument value is written inside a tag.
enum ValueForm {
    /// An unquoted string that matches all of these regular expressions.
    Text(Vec<String>),
    /// One of these strings, unquoted.
    Listed(Vec<String>),
    /// A JSON value of this schema.
    Json(Value),
}

/// The ways to write values of a schema inside a tag. With `states_type`, the tag states whether it
/// holds a string. Otherwise the parser reads anything that is not other JSON as a string, so
/// strings are never quoted.
fn value_forms(property: &Value, states_type: bool) -> Vec<ValueForm> {
    let schema = resolved(property, property);
    if let Some(texts) = string_options(&schema) {
        return vec![ValueForm::Listed(texts)];
    }
    if schema["type"] == "string" {
        return vec![ValueForm::Text(text_patterns(&schema))];
    }
    if states_type || !admits(property, property, &Value::from("")) {
        return vec![ValueForm::Json(property.clone())];
    }
    if let Some(values) = schema["enum"].as_array() {
        let written = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        return vec![ValueForm::Listed(values.iter().map(written).collect())];
    }
    if let Some(kinds) = schema["type"].as_array() {
        let others: Vec<Value> = kinds.iter().filter(|kind| *kind != "string").cloned().collect();
        let mut rest = schema.clone();
        rest["type"] = others.clone().into();
        let rest = (!others.is_empty()).then_some(ValueForm::Json(rest));
        return [ValueForm::Text(text_patterns(&schema))].into_iter().chain(rest).collect();
    }
    let options = ["anyOf", "oneOf"].iter().find_map(|key| schema[*key].as_array());
    let single = |option: &Value| match resolved(&schema, option) {
        text if text["type"] == "string" && string_options(&text).is_none() => {
            ValueForm::Text(text_patterns(&text))
        }
        other => match string_options(&other) {
            Some(texts) => ValueForm::Listed(texts),
            None => ValueForm::Json(other),
        },
    };
    match options {
        Some(options) => options.iter().map(single).collect(),
        None => vec![ValueForm::Text(Vec::new())],
    }
}

/// Grammar parts of a call with one tag per argument: strings unquoted, all else as JSON. Models of
/// one family differ in the line breaks between tags, hence `Part::Gap`.
pub(crate) fn tagged(
    tags: &TagMarkers,
    open: &str,
    close: &str,
    schema: &Value,
    before: impl Fn(&str, bool) -> Vec<Part>,
) -> Vec<Part> {
    let mut parts = vec![Part::Text(open.into()), Part::Gap];
    let pad = if tags.padded { "\n" } else { "" };
    let closing = tags.decoration.iter().filter(|mark| mark.starts_with("</"));
    let without = [tags.key, tags.close, tags.open, tags.value_end].into_iter().chain(closing.copied());
    let without: Vec<String> = without.map(str::to_owned).collect();
    let text = |patterns: Vec<String>| {
        // Any marker that the parser takes for the end ends a string. With a pattern, the padding
        // line break is not part of the match.
        let pad = if patterns.is_empty() { "" } else { pad };
        Part::Raw(Raw { patterns, without: without.clone(), pad: pad.into(), end: tags.value_end.into() })
    };
    let end = Part::Text(format!("{pad}{}", tags.value_end));
    let value = |way: ValueForm| match way {
        ValueForm::Text(patterns) => (true, vec![text(patterns)]),
        ValueForm::Listed(texts) => (true, vec![Part::OneOf(texts), end.clone()]),
        ValueForm::Json(schema) => (false, vec![Part::Json(schema), end.clone()]),
    };
    for (key, property, required) in properties(schema) {
        let mut pairs: Vec<Vec<Part>> = Vec::new();
        for way in value_forms(&property, tags.states_type) {
            let (is_text, value) = value(way);
            pairs.push(before(key, is_text).into_iter().chain(value).chain([Part::Gap]).collect());
        }
        let pair = if pairs.len() == 1 { pairs.pop().unwrap_or_default() } else { vec![Part::Either(pairs)] };
        if required { parts.extend(pair) } else { parts.push(Part::Optional(pair)) }
    }
    if takes_unlisted(schema) {
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
fn takes_unlisted(schema: &Value) -> bool {
    schema.get("properties").is_none() && schema.get("additionalProperties") != Some(&Value::Bool(false))
}

/// Grammar parts of a Python call: required arguments, then optional ones; values as JSON.
pub(crate) fn pythonic(name: &str, schema: &Value) -> Vec<Part> {
    let argument = |key: &str, property: Value| vec![Part::Text(format!("{key}=")), Part::Json(property)];
    let unlisted = [Part::Regex(KEY.into()), Part::Text("=".into()), Part::Json(json!({}))];
    argument_list(schema, [format!("{name}("), ", ".into(), ")".into()], argument, &unlisted)
}

/// Grammar parts of Gemma 4's arguments: bare keys, strings between quote tokens, other values as
/// JSON.
pub(crate) fn gemma_arguments(schema: &Value) -> Vec<Part> {
    let quote = || Part::Text(QUOTE.into());
    let without = [QUOTE, GEMMA4.close, GEMMA4.open].map(str::to_owned).to_vec();
    let value = |form: ValueForm| match form {
        ValueForm::Text(patterns) => {
            let raw = Raw { patterns, without: without.clone(), pad: String::new(), end: QUOTE.into() };
            vec![quote(), Part::Raw(raw)]
        }
        ValueForm::Listed(texts) => vec![quote(), Part::OneOf(texts), quote()],
        ValueForm::Json(schema) => vec![Part::Json(schema)],
    };
    let argument = |key: &str, property: Value| {
        let is_bare = key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
        let key = if is_bare && !key.is_empty() { key.to_owned() } else { json!(key).to_string() };
        let values = value_forms(&property, true).into_iter().map(value).collect();
        vec![Part::Text(format!("{key}:")), Part::Either(values)]
    };
    let unlisted = [Part::Regex(KEY.into()), Part::Text(":".into()), Part::Json(json!({}))];
    argument_list(schema, ["{", ",", "}"].map(str::to_owned), argument, &unlisted)
}

/// Grammar parts of named arguments between `open` and `close`: required ones, then optional ones.
/// `unlisted` is an argument that the schema does not list.
fn argument_list(
    schema: &Value,
    [open, comma, close]: [String; 3],
    argument: impl Fn(&str, Value) -> Vec<Part>,
    unlisted: &[Part],
) -> Vec<Part> {
    let one = |(key, property, _): (&String, Value, bool)| argument(key, property);
    let (needed, free): (Vec<_>, Vec<_>) = properties(schema).partition(|(_, _, required)| *required);
    let separator = || Part::Text(comma.clone());
    let mut parts = vec![Part::Text(open)];
    if takes_unlisted(schema) {
        let more = [separator()].into_iter().chain(unlisted.iter().cloned()).collect();
        parts.push(Part::Optional(unlisted.iter().cloned().chain([Part::Many(more)]).collect()));
    } else if needed.is_empty() {
        parts.push(Part::Some(comma.clone(), free.into_iter().map(one).collect()));
    } else {
        for (n, one) in needed.into_iter().map(one).enumerate() {
            parts.extend((n > 0).then(separator).into_iter().chain(one));
        }
        let free = free.into_iter().map(one);
        parts.extend(free.map(|one| Part::Optional([separator()].into_iter().chain(one).collect())));
    }
    parts.push(Part::Text(close));
    parts
}

//! Random JSON schemas as clients send them, and an independent validator for values.

use crate::random::Random;
use serde_json::{Map, Value, json};

const KEYS: &[&str] = &[
    "name",
    "id",
    "title",
    "price",
    "tags",
    "user_id",
    "created-at",
    "status",
    "address",
    "items",
    "enabled",
    "note",
    "größe",
    "first name",
];

/// A random client-style schema: a titled object, sometimes with `$defs`.
pub fn schema(random: &mut Random) -> Value {
    let mut schema = object(random, 0);
    if random.one_in(3) {
        schema["$defs"] = json!({"point": {"type": "object", "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}, "y": {"type": "boolean"}}, "required": ["x", "y"], "additionalProperties": false}});
        schema["properties"]["at"] = json!({"$ref": "#/$defs/point"});
        schema["required"] = json!(["at"]);
    }
    schema["title"] = "Answer".into();
    schema["description"] = "What is asked for".into();
    schema
}

fn object(random: &mut Random, depth: u32) -> Value {
    let mut properties = Map::new();
    for _ in 0..1 + random.below(4) {
        properties.insert(random.pick(KEYS).to_owned(), value(random, depth + 1));
    }
    let required: Vec<&String> = properties.keys().filter(|_| !random.one_in(3)).collect();
    let required = json!(required);
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn value(random: &mut Random, depth: u32) -> Value {
    match random.below(if depth > 2 { 11 } else { 14 }) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => json!({"type": "integer", "minimum": -(random.below(50) as i64), "maximum": random.below(1000)}),
        3 => json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1 + random.below(100)}),
        4 => json!({"type": "string", "minLength": random.below(3), "maxLength": 3 + random.below(8)}),
        5 => json!({"type": "string", "enum": ["red", "\"green\"", "blé", ""]}),
        6 => {
            json!({"type": "string", "pattern": random.pick(&["^[A-Z]{2}-[0-9]{3}$", "^(ab|cd)+e?$", "^[a-z]{1,6}\\.(rs|md)$"]), "maxLength": 20})
        }
        7 => json!({"type": "string", "format": random.pick(&["date", "uuid", "ipv4"])}),
        8 => json!({"const": random.pick(&["v1", "a/b\\c", "tab\there"])}),
        9 => json!({"enum": [1, "two", null, true, 2.5]}),
        10 => json!({"type": ["string", "null"], "maxLength": 6}),
        11 => object(random, depth),
        12 => {
            json!({"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, object(random, depth), {"type": "null"}]})
        }
        _ => {
            let low = random.below(3);
            json!({"type": "array", "items": value(random, depth + 1), "minItems": low, "maxItems": low + random.below(3)})
        }
    }
}

/// Validates a value; returns the reason if it does not satisfy the schema.
pub fn misfit(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    let bad = |why: &str| Some(format!("{value} {why} in {schema}"));
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        return misfit(root, target, value);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let fits = options.iter().any(|option| misfit(root, option, value).is_none());
        return if fits { None } else { bad("fits no option") };
    }
    if schema.get("const").is_some_and(|constant| constant != value) {
        return bad("is not the constant");
    }
    if schema["enum"].as_array().is_some_and(|list| !list.contains(value)) {
        return bad("is not listed");
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.as_f64().is_some_and(|n| n.fract() == 0.0) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is = |wanted: &Value| wanted == kind || wanted == "number" && kind == "integer";
    let typed = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        one => is(one),
    };
    if !typed {
        return bad("has another type");
    }
    match value {
        Value::Number(number) => misfit_number(schema, number.as_f64().unwrap()).and_then(|why| bad(&why)),
        Value::String(text) => misfit_text(schema, text).and_then(|why| bad(&why)),
        Value::Array(items) => {
            let n = items.len() as u64;
            let in_bounds = schema["minItems"].as_u64().is_none_or(|low| n >= low)
                && schema["maxItems"].as_u64().is_none_or(|high| n <= high);
            if in_bounds {
                items.iter().find_map(|item| misfit(root, &schema["items"], item))
            } else {
                bad("has another number of items")
            }
        }
        Value::Object(map) => {
            let required = schema["required"].as_array().into_iter().flatten();
            if let Some(missing) = required.filter_map(Value::as_str).find(|key| !map.contains_key(*key)) {
                return bad(&format!("lacks {missing}"));
            }
            map.iter().find_map(|(key, item)| match schema["properties"].get(key) {
                Some(property) => misfit(root, property, item),
                None => bad(&format!("has {key} too much")),
            })
        }
        Value::Null | Value::Bool(_) => None,
    }
}

fn misfit_number(schema: &Value, number: f64) -> Option<String> {
    let bound = |key: &str| schema[key].as_f64();
    let fits = bound("minimum").is_none_or(|low| number >= low)
        && bound("maximum").is_none_or(|high| number <= high)
        && bound("exclusiveMaximum").is_none_or(|high| number < high);
    (!fits).then(|| "is out of bounds".into())
}

fn misfit_text(schema: &Value, text: &str) -> Option<String> {
    let length = text.chars().count() as u64;
    if schema["minLength"].as_u64().is_some_and(|low| length < low)
        || schema["maxLength"].as_u64().is_some_and(|high| length > high)
    {
        return Some("has another length".into());
    }
    let fits = match (schema["pattern"].as_str(), schema["format"].as_str()) {
        (None, None) => true,
        (Some(pattern), _) if pattern.starts_with("^[A-Z]") => {
            let bytes = text.as_bytes();
            bytes.len() == 6
                && bytes[..2].iter().all(u8::is_ascii_uppercase)
                && bytes[2] == b'-'
                && bytes[3..].iter().all(u8::is_ascii_digit)
        }
        (Some(pattern), _) if pattern.starts_with("^(ab") => {
            let rest = text.strip_suffix('e').unwrap_or(text);
            !rest.is_empty() && rest.replace("ab", "").replace("cd", "").is_empty()
        }
        (Some(_), _) => text.split_once('.').is_some_and(|(stem, end)| {
            (1..=6).contains(&stem.len())
                && stem.bytes().all(|b| b.is_ascii_lowercase())
                && ["rs", "md"].contains(&end)
        }),
        (None, Some("date")) => {
            let parts: Vec<u32> = text.split('-').filter_map(|part| part.parse().ok()).collect();
            text.len() == 10
                && parts.len() == 3
                && (1..=12).contains(&parts[1])
                && (1..=31).contains(&parts[2])
        }
        (None, Some("uuid")) => {
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            lengths == [8, 4, 4, 4, 12] && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
        }
        (None, Some(_)) => text.split('.').filter(|part| part.parse::<u8>().is_ok()).count() == 4,
    };
    (!fits).then(|| "has another form".into())
}

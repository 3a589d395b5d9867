//! Closes object schemas for structured output: sets `additionalProperties: false` where a schema
//! lists properties.

use serde_json::{Map, Value};

/// Keywords that hold one subschema.
const ONE: [&str; 4] = ["items", "additionalProperties", "contains", "propertyNames"];
/// Keywords that hold a list of subschemas.
const LISTS: [&str; 3] = ["prefixItems", "anyOf", "oneOf"];
/// Keywords that hold a map of subschemas.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that combine several subschemas for one object; a property unknown to one may belong to
/// another.
const COMBINE: [&str; 8] =
    ["allOf", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"];

/// Restricts objects to the properties that are listed.
///
/// By JSON Schema, objects are open unless stated otherwise. Clients mean a fixed form, and a model
/// that may invent properties does so. Schemas that combine several descriptions of one object are
/// left unchanged.
pub(crate) fn close(schema: &mut Value) {
    if !combines(schema) {
        close_objects(schema);
    }
}

fn combines(schema: &Value) -> bool {
    let Some(map) = schema.as_object() else { return false };
    let has = |key: &&str| map.contains_key(*key);
    let names_properties = ["properties", "required", "patternProperties"].iter().any(has);
    let refers = ["anyOf", "oneOf", "$ref", "$dynamicRef"].iter().any(has);
    COMBINE.iter().any(has) || names_properties && refers || children(schema).any(combines)
}

fn children(schema: &Value) -> impl Iterator<Item = &Value> {
    let under = |keys: &'static [&str]| keys.iter().filter_map(|key| schema.get(key));
    let lists = under(&LISTS).filter_map(Value::as_array).flatten();
    let named = under(&NAMED).filter_map(Value::as_object).flat_map(|map| map.values());
    under(&ONE).chain(lists).chain(named)
}

fn close_objects(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    let open = needs_others(map);
    for (key, value) in map.iter_mut() {
        match value {
            inner if ONE.contains(&key.as_str()) => close_objects(inner),
            Value::Array(list) if LISTS.contains(&key.as_str()) => list.iter_mut().for_each(close_objects),
            Value::Object(named) if NAMED.contains(&key.as_str()) => {
                named.values_mut().for_each(close_objects)
            }
            _ => {}
        }
    }
    if !open {
        map.insert("additionalProperties".into(), Value::Bool(false));
    }
}

/// Whether an object may, or must, have properties that are not listed.
fn needs_others(map: &Map<String, Value>) -> bool {
    let Some(named) = map.get("properties").and_then(Value::as_object) else { return true };
    let required = map.get("required").and_then(Value::as_array);
    let unnamed = |name: &Value| name.as_str().is_none_or(|name| !named.contains_key(name));
    required.is_some_and(|required| required.iter().any(unnamed))
        || ["additionalProperties", "patternProperties", "minProperties"]
            .iter()
            .any(|key| map.contains_key(*key))
}

#[cfg(test)]
mod tests {
    use crate::grammar::closed_objects::close;
    use serde_json::{Value, json};

    fn closed(mut schema: Value) -> Value {
        close(&mut schema);
        schema
    }

    #[test]
    fn nested_objects_with_properties_are_closed() {
        let inner = json!({"properties": {"properties": {"type": "string"}}});
        let mut shut = inner.clone();
        shut["additionalProperties"] = false.into();
        let around = |inner: &Value| json!({"anyOf": [{"type": "null"}, {"items": inner}], "$defs": {"a": inner}, "default": {"properties": {}}});
        assert_eq!(closed(inner.clone()), shut);
        assert_eq!(closed(around(&inner)), around(&shut));
    }

    #[test]
    fn schemas_with_additional_properties_are_unchanged() {
        for schema in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "patternProperties": {"^b": {}}}),
            json!({"properties": {"a": {}}, "required": ["a", "b"]}),
            json!({"properties": {"a": {}}, "minProperties": 2}),
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"items": {"$ref": "#/$defs/a", "required": ["b"]}, "$defs": {"a": {"properties": {"c": {}}}}}),
        ] {
            assert_eq!(closed(schema.clone()), schema);
        }
    }
}

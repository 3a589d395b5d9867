//! Minimal JSON Schema check: whether a schema admits a value's type. It decides if an unquoted
//! argument is a string.

use serde_json::Value;

/// Maximum depth of nested references and alternatives.
const MAX_DEPTH: usize = 16;

/// Whether `schema` admits values of this type. `root` resolves `$ref`s. Keywords that are not
/// understood admit everything.
pub(crate) fn admits(root: &Value, schema: &Value, value: &Value) -> bool {
    within(root, schema, value, MAX_DEPTH)
}

fn within(root: &Value, schema: &Value, value: &Value, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return true };
    if let Some(reference) = schema["$ref"].as_str() {
        let found = reference.strip_prefix('#').and_then(|path| root.pointer(path));
        return found.is_none_or(|found| within(root, found, value, depth));
    }
    let is_kind = |name: &Value| match name.as_str() {
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_number() && value.as_f64().is_some_and(|v| v.fract() == 0.0),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    let like = |one: &Value| std::mem::discriminant(one) == std::mem::discriminant(value);
    let named = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(is_kind),
        kind => is_kind(kind),
    };
    let some = |name: &str, fits: &dyn Fn(&Value) -> bool| {
        schema[name].as_array().is_none_or(|list| list.iter().any(fits))
    };
    let inner = |one: &Value| within(root, one, value, depth);
    named
        && some("enum", &like)
        && schema.get("const").is_none_or(like)
        && some("anyOf", &inner)
        && some("oneOf", &inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_resolved_through_alternatives_and_references() {
        let root = json!({"$defs": {"name": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}});
        let kinds = |schema: Value| -> String {
            let values = [json!("a"), json!(1), json!(1.5), json!(true), Value::Null, json!([]), json!({})];
            let takes = |value: &Value| admits(&root, &schema, value);
            values.iter().zip("sinbuao".chars()).filter(|(v, _)| takes(v)).map(|(_, c)| c).collect()
        };
        assert_eq!(kinds(json!({"type": "string"})), "s");
        assert_eq!(kinds(json!({"type": ["string", "null"]})), "su");
        assert_eq!(kinds(json!({"anyOf": [{"$ref": "#/$defs/name"}, {"type": "integer"}]})), "si");
        assert_eq!(kinds(json!({"enum": ["a", null]})), "su");
        assert_eq!(kinds(json!({"const": 3})), "in");
        for open in [json!({}), json!({"$ref": "#/$defs/loop"}), json!({"$ref": "elsewhere"}), json!(true)] {
            assert_eq!(kinds(open).len(), 7);
        }
    }
}

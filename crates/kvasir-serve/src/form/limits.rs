use serde_json::Value;

/// Most bytes of a grammar, or of a schema as text.
pub(super) const MAX_BYTES: usize = 256 << 10;
/// Most bytes of a regular expression.
pub(super) const MAX_PATTERN: usize = 16 << 10;
/// Deepest nesting of a schema, a grammar or a regular expression.
pub(super) const MAX_DEPTH: usize = 64;
/// Most texts to choose from.
pub(super) const MAX_CHOICES: usize = 4096;
/// Largest count of repetitions or bound of a length in a schema.
const MAX_COUNT: f64 = 65_536.0;

/// Keywords of a schema that count something which the grammar must spell out.
const COUNTS: &[&str] = &["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Refuses a schema that is too large to compile.
pub(super) fn check_schema(schema: &Value) -> Result<(), String> {
    let mut bytes = 0;
    walk(schema, 0, &mut bytes)?;
    match bytes > MAX_BYTES {
        true => Err(format!("may have at most {MAX_BYTES} bytes")),
        false => Ok(()),
    }
}

fn walk(value: &Value, depth: usize, bytes: &mut usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("may be nested at most {MAX_DEPTH} deep"));
    }
    *bytes += 1;
    match value {
        Value::String(text) => *bytes += text.len(),
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, depth + 1, bytes))?,
        Value::Object(map) => {
            for (key, item) in map {
                *bytes += key.len();
                let too_much = item.as_f64().is_some_and(|count| count > MAX_COUNT);
                if COUNTS.contains(&key.as_str()) && too_much {
                    return Err(format!("has `{key}` {item}; at most {MAX_COUNT} can be followed"));
                }
                walk(item, depth + 1, bytes)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => *bytes += 4,
    }
    Ok(())
}

/// Refuses a text that is too long, or has brackets nested too deep for a parser that calls itself.
pub(super) fn check_text(text: &str, most: usize) -> Result<(), String> {
    if text.len() > most {
        return Err(format!("may have at most {most} bytes"));
    }
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("may be nested at most {MAX_DEPTH} deep"));
        }
    }
    Ok(())
}

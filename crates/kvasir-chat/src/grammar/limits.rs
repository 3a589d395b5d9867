//! Size limits of schemas, grammars and regular expressions, checked before compilation (untrusted
//! input).

use serde_json::Value;

/// Maximum size of a grammar, or of a schema as text, in bytes.
pub(crate) const MAX_BYTES: usize = 256 << 10;
/// Maximum size of a regular expression, in bytes.
pub(crate) const MAX_PATTERN: usize = 16 << 10;
/// Maximum nesting depth of a schema, a grammar or a regular expression.
pub(super) const MAX_DEPTH: usize = 64;
/// Maximum number of grammar rules: an error at the end of a chain of rules is reported through all
/// of them.
const MAX_RULES: usize = 1024;
/// Maximum total number of properties in a schema; optional ones cost the square of their number.
const MAX_PROPERTIES: usize = 2048;
/// Maximum number of alternatives of a choice.
pub(crate) const MAX_CHOICES: usize = 4096;
/// Largest repetition count or length bound in a schema.
const MAX_COUNT: f64 = 65_536.0;
/// Schema keywords whose values are data, not schemas.
const DATA: &[&str] = &["const", "enum", "default", "examples"];
/// Schema keywords whose count the grammar must unroll.
const COUNTS: &[&str] = &["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Totals of a schema walk.
#[derive(Default)]
struct Size {
    bytes: usize,
    properties: usize,
    /// Number of enclosing keywords whose values are data.
    within_data: usize,
}

/// Rejects a schema that is too large to compile.
pub(crate) fn check_schema(schema: &Value) -> Result<(), String> {
    let mut size = Size::default();
    walk(schema, 0, &mut size)?;
    if size.bytes > MAX_BYTES {
        return Err(format!("may have at most {MAX_BYTES} bytes"));
    }
    if size.properties > MAX_PROPERTIES {
        Err(format!("may have at most {MAX_PROPERTIES} properties, not {}", size.properties))
    } else {
        Ok(())
    }
}

fn walk(value: &Value, depth: usize, size: &mut Size) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("may be nested at most {MAX_DEPTH} deep"));
    }
    size.bytes += 1;
    match value {
        Value::String(text) => size.bytes += text.len(),
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, depth + 1, size))?,
        Value::Object(map) => {
            for (key, item) in map {
                size.bytes += key.len();
                let too_much = item.as_f64().is_some_and(|count| count > MAX_COUNT);
                if COUNTS.contains(&key.as_str()) && too_much {
                    return Err(format!("has `{key}` {item}; at most {MAX_COUNT} can be followed"));
                }
                if let ("properties", Some(properties)) = (key.as_str(), item.as_object()) {
                    size.properties += properties.len();
                }
                let is_data = DATA.contains(&key.as_str());
                if let ("pattern", Some(pattern), 0) = (key.as_str(), item.as_str(), size.within_data) {
                    check_escapes(pattern).map_err(|why| format!("has a `pattern` that {why}"))?;
                }
                size.within_data += usize::from(is_data);
                walk(item, depth + 1, size)?;
                size.within_data -= usize::from(is_data);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => size.bytes += 4,
    }
    Ok(())
}

/// Rejects a grammar that is too large to compile.
pub(crate) fn check_grammar(text: &str) -> Result<(), String> {
    check_text(text, MAX_BYTES)?;
    // Counts lines with a colon: every rule has one, so the count is an upper bound.
    if text.lines().filter(|line| line.contains(':')).count() > MAX_RULES {
        Err(format!("may have at most {MAX_RULES} rules"))
    } else {
        Ok(())
    }
}

/// Rejects a text that is too long, or nested too deeply for a recursive parser.
pub(crate) fn check_text(text: &str, max: usize) -> Result<(), String> {
    if text.len() > max {
        return Err(format!("may have at most {max} bytes"));
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

/// Rejects a regular expression that ends in the middle of an escape: the library drops the backslash.
pub(super) fn check_escapes(pattern: &str) -> Result<(), String> {
    let backslashes = pattern.bytes().rev().take_while(|byte| *byte == b'\\').count();
    match backslashes % 2 {
        0 => Ok(()),
        _ => Err("ends in a backslash that escapes nothing".into()),
    }
}

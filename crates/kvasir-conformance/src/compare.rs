//! Structural comparison of recorded and replayed JSON, and range expansion.

use serde::Serialize;
use serde_json::Value;

/// The first difference between expected and actual values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// JSON path of the difference: operation or row, then field.
    pub at: String,
    /// The recorded value.
    pub expected: Value,
    /// The replayed value.
    pub got: Value,
}

/// Replaces every `{"range": [a, b]}` by the integers `a .. b` and subtracts their count from
/// `left`.
///
/// Fails when `left` would become negative.
pub(crate) fn expand_ranges(value: Value, left: &mut u64) -> Result<Value, String> {
    match value {
        Value::Object(map) => {
            if let (1, Some(Value::Array(ends))) = (map.len(), map.get("range")) {
                let [Some(from), Some(to)] = ends.iter().map(Value::as_u64).collect::<Vec<_>>()[..] else {
                    return Err("a range needs two numbers".into());
                };
                let numbers = to.checked_sub(from).ok_or_else(|| format!("a range from {from} to {to}"))?;
                *left = left.checked_sub(numbers).ok_or_else(|| {
                    format!("a range of {numbers} numbers is more than a file may have altogether")
                })?;
                return Ok((from..to).map(Value::from).collect());
            }
            map.into_iter().map(|(key, value)| Ok((key, expand_ranges(value, left)?))).collect()
        }
        Value::Array(items) => items.into_iter().map(|item| expand_ranges(item, left)).collect(),
        other => Ok(other),
    }
}

/// Compares `got` with `expected`.
///
/// Objects are compared by the keys of `expected` only, everything else exactly. An expected
/// `{"not_compared": true}` matches anything.
pub fn compare(at: &str, expected: &Value, got: &Value) -> Result<(), Box<Mismatch>> {
    match (expected, got) {
        (Value::Object(want), _) if want.get("not_compared") == Some(&Value::Bool(true)) => Ok(()),
        (Value::Object(want), Value::Object(have)) => want.iter().try_for_each(|(key, value)| {
            compare(&format!("{at}.{key}"), value, have.get(key).unwrap_or(&Value::Null))
        }),
        (Value::Array(want), Value::Array(have)) if want.len() == have.len() => want
            .iter()
            .zip(have)
            .enumerate()
            .try_for_each(|(i, (want, have))| compare(&format!("{at}[{i}]"), want, have)),
        _ if expected == got => Ok(()),
        _ => Err(Box::new(Mismatch { at: at.to_owned(), expected: expected.clone(), got: got.clone() })),
    }
}

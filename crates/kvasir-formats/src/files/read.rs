//! Reads text and JSON files of bounded size; a missing file is `None`.

use crate::error::{Error, Result};
use serde_json::Value as Json;
use std::path::Path;

/// Maximum JSON file size in bytes. Configs have a few thousand, an index of a large model a few
/// million.
const MAX_JSON: u64 = 64 << 20;

/// Reads a JSON file; `None` if it does not exist.
pub(crate) fn read_json(path: &Path) -> Result<Option<Json>> {
    let Some(text) = read_text(path, MAX_JSON)? else { return Ok(None) };
    let parsed = serde_json::from_str(&text).or_else(|error| {
        // Python writes `Infinity` and `NaN`, which are not JSON; published configs contain them.
        let replaced = replace_non_finite(&text).ok_or(error)?;
        serde_json::from_str(&replaced)
    });
    parsed.map(Some).map_err(|e| Error::at(path.display(), e))
}

/// Replaces each `Infinity`, `-Infinity` and `NaN` outside of strings by `null`. `None` if there is
/// none.
fn replace_non_finite(text: &str) -> Option<String> {
    const NAMES: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let (mut out, mut rest, mut changed) = (String::with_capacity(text.len()), text, false);
    let (mut in_string, mut escaped) = (false, false);
    while let Some(c) = rest.chars().next() {
        if let Some(name) = NAMES.iter().find(|name| !in_string && rest.starts_with(**name)) {
            out.push_str("null");
            rest = &rest[name.len()..];
            changed = true;
            continue;
        }
        if !escaped && c == '"' {
            in_string = !in_string;
        }
        escaped = in_string && !escaped && c == '\\';
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    changed.then_some(out)
}

/// Reads a text file of at most `max` bytes; `None` if it does not exist.
pub(crate) fn read_text(path: &Path, max: u64) -> Result<Option<String>> {
    let io = |e: std::io::Error| Error::at(path.display(), e);
    let meta = match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io)?,
    };
    if !meta.is_file() || meta.len() > max {
        return Err(Error::at(path.display(), format!("is not a regular file of at most {max} bytes")));
    }
    std::fs::read_to_string(path).map(Some).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_numbers_become_null_outside_of_strings() {
        let text = r#"{"time_step_limit": [0.0, Infinity], "a": "Infinity \" NaN", "b": [-Infinity, NaN]}"#;
        let expected = r#"{"time_step_limit": [0.0, null], "a": "Infinity \" NaN", "b": [null, null]}"#;
        assert_eq!(replace_non_finite(text).as_deref(), Some(expected));
        assert_eq!(replace_non_finite(r#"{"a": "NaN"}"#), None);
    }
}

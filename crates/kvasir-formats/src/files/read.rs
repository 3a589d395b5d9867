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
    serde_json::from_str(&text).map(Some).map_err(|e| Error::at(path.display(), e))
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

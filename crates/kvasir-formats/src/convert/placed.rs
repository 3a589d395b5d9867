//! [`Placed`]: where one tensor of a Hugging Face checkpoint goes in GGUF.

use crate::convert::output::Part;
use crate::error::{Error, Result};
use serde_json::Value as Json;

/// GGUF name, shape, expert number of a stack, and the part that the tensor makes up.
pub(super) type Placed = (String, Vec<usize>, Option<usize>, Part);

/// A size of the config.
pub(super) fn size(config: &Json, key: &str) -> Result<usize> {
    let n = config
        .get(key)
        .and_then(Json::as_u64)
        .and_then(|n| usize::try_from(n).ok())
        .filter(|&n| n <= 1 << 24);
    n.ok_or_else(|| Error::at(format!("config.json: {key}"), "is missing or not a positive integer"))
}

pub(super) fn unplaced(name: &str) -> Error {
    Error::at(format!("tensor {name}"), "cannot be represented in GGUF")
}

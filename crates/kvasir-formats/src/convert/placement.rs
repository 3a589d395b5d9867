//! [`Placement`]: the GGUF tensor that a tensor of a Hugging Face checkpoint is converted to.

use crate::convert::output::{Change, Part};
use crate::error::{Error, Result};
use crate::gguf::names::Naming;
use kvasir_program::Architecture;
use serde_json::Value as Json;

/// One source tensor as a part of a GGUF tensor.
pub(super) struct Placement {
    /// GGUF name.
    pub(super) name: String,
    /// Shape of the part.
    pub(super) shape: Vec<usize>,
    /// The expert in a stack of experts.
    pub(super) expert: Option<usize>,
    pub(super) part: Part,
}

impl Placement {
    /// One tensor with values changed by `change`, under its GGUF name.
    pub(super) fn of(
        architecture: &Architecture,
        name: &str,
        shape: Vec<usize>,
        change: Change,
    ) -> Result<Self> {
        let found = Naming::of(architecture).to_gguf(name);
        let (gguf_name, expert) = found.ok_or_else(|| unsupported_tensor(name))?;
        Ok(Self { name: gguf_name, shape, expert, part: Part { change, ..Part::whole(name) } })
    }
}

/// Reads a size from the config.
pub(super) fn size(config: &Json, key: &str) -> Result<usize> {
    let n = config
        .get(key)
        .and_then(Json::as_u64)
        .and_then(|n| usize::try_from(n).ok())
        .filter(|&n| n <= 1 << 24);
    n.ok_or_else(|| Error::at(format!("config.json: {key}"), "is missing or not a positive integer"))
}

/// The error for a tensor without a GGUF name.
pub(super) fn unsupported_tensor(name: &str) -> Error {
    Error::at(format!("tensor {name}"), "cannot be represented in GGUF")
}

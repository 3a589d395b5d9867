//! [`Metadata`]: what a GGUF file says, as far as a config follows from it.

use crate::error::Result;
use serde_json::Value as Json;

/// A GGUF file's metadata below its architecture's prefix, and its tensors.
pub trait Metadata {
    /// The value of `ARCHITECTURE.KEY`, arrays of scalars as lists; an f32 has its shortest decimal
    /// form, so that 1e-6 stays 1e-6. `None` if it is absent, not finite or very long.
    fn value(&self, key: &str) -> Option<Json>;
    /// The shape of a tensor, the slowest dimension first.
    fn shape(&self, tensor: &str) -> Option<&[usize]>;
    /// The values of a short f32 tensor; fails if it is another one.
    fn floats(&self, tensor: &str) -> Result<Option<Vec<f32>>>;
}

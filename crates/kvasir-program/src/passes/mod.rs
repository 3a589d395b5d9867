//! Passes over a finished program: buffer assignment, and leaving out rows whose logits are not wanted.

pub(crate) mod buffers;
pub(crate) mod features;
pub(crate) mod sampled;

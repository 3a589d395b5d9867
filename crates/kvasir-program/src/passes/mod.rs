//! Passes over a finished program: buffer assignment, leaving out rows whose logits are not wanted,
//! and dividing a program among ranks.

pub(crate) mod buffers;
pub(crate) mod features;
pub(crate) mod sampled;
pub(crate) mod split;

//! Passes over a finished program: buffer assignment, pruning of rows without sampled logits, and
//! sharding among tensor-parallel ranks.

pub(crate) mod buffers;
pub(crate) mod features;
pub(crate) mod sampled;
pub(crate) mod split;

//! Passes over a finished program: buffer assignment, pruning of rows without sampled logits,
//! sharding among tensor-parallel ranks, and sharding of experts among data-parallel replicas.

pub(crate) mod buffers;
pub(crate) mod features;
pub(crate) mod sampled;
pub(crate) mod split;
// The last one: it builds on `split`.
pub(crate) mod experts;

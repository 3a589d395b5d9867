//! Passes over a finished program: buffer assignment, pruning of rows without sampled logits,
//! sharding among tensor-parallel ranks, sharding of experts among expert-parallel replicas, and
//! validation of token-to-expert tables.

pub(crate) mod buffers;
pub(crate) mod expert_parallel;
pub(crate) mod features;
pub(crate) mod sampled;
pub(crate) mod split;
pub(crate) mod token_tables;

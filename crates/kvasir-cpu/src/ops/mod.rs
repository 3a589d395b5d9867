//! Mixture of experts, with and without expert parallelism, hyper-connections, key pools with the
//! indexer of sparse attention, and compressed entries.
//!
//! Knows no executor; builds on `gemm` and `attention`.

pub(crate) mod compressed_attend;
pub(crate) mod expert_parallel;
pub(crate) mod hyper_connection;
pub(crate) mod indexer;
pub(crate) mod key_pools;
pub(crate) mod mixture;
pub(crate) mod pooled_key;

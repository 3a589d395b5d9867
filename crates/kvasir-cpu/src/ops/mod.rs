//! Mixture of experts, with and without expert parallelism, the indexer of sparse attention, and
//! hyper-connections.
//!
//! Know no program run; build on `gemm` and `attention`.

pub(crate) mod expert_parallel;
pub(crate) mod hyper_connection;
pub(crate) mod indexer;
pub(crate) mod mixture;

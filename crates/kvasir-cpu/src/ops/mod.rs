//! Ops made of several GEMMs: mixture of experts, with and without expert parallelism, and the
//! indexer of sparse attention.
//!
//! Know no program run; build on `gemm` and `attention`.

pub(crate) mod expert_parallel;
pub(crate) mod indexer;
pub(crate) mod mixture;

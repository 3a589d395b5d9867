//! Ops made of several products: mixture of experts, and the indexer of sparse attention.
//!
//! Know no program run; build on `gemm` and `attention`.

pub(crate) mod exchanged_mixture;
pub(crate) mod indexer;
pub(crate) mod mixture;

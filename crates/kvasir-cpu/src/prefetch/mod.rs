//! Software prefetching: hints that never change a result.
//!
//! - `hint`: the instructions, per cache line, tile and page.
//! - `tuner`: auto-tunes the prefetch distance of streaming kernels.
//! - `kv_prefetch`: prefetches the next layer's K/V pages while GEMMs run.
//! - `ranges`, `next_head`: the rows that attention reads next, in parts beside its products.
//!
//! Knows no kernel; builds on `isa` and `memory`.

pub(crate) mod hint;
pub(crate) mod kv_prefetch;
pub(crate) mod next_head;
pub(crate) mod ranges;
pub(crate) mod tuner;

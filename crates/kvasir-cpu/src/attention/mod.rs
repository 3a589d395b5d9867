//! Multi-head attention (MHA, GQA, MQA, MLA) over a paged KV cache: FlashAttention-style online
//! softmax on the CPU.
//!
//! 1. `build_views`: the plan becomes, per span of query tokens, a list of KV chunks of 64 positions
//!    (`views`).
//! 2. `shared_prefix`: views with a common prefix form groups, which read its chunks once (cascade
//!    attention).
//! 3. `run`: groups are cut into work items by KV heads and tokens, for the thread pool.
//! 4. `pack_queries`: the query rows of an item (one row is one query head of one token) are packed
//!    16 at a time (`query_blocks`).
//! 5. `chunk_loop`: per chunk K and V are staged (`staged_kv`) and `S = Q K^T` becomes attention
//!    weights `P = exp(S - m_new)` (`softmax`). Then `O = O * exp(m_old - m_new) + P V`:
//!    `accumulate_gemm` with V packed (`packed_values`), `accumulate_decode` for few query rows.
//! 6. The result is `O / l`, where the denominator `l` includes the attention sink.
//!
//! The stages read and write the values of `scratch`. `kernel` has the kernels per instruction set,
//! `decode` those of few query rows (GEMV). `f32` is attention in f32 arithmetic, `reference` the
//! scalar reference of the tests.
//!
//! Batch invariance: a row's KV entries are reduced in rising order of position, in chunks aligned
//! to multiples of 64. So every cache layout, mask and batch composition gives the same bits.
//! `tests.rs` and `tests/plans.rs` check this.
//!
//! Knows no op and no executor; builds on `gemm`, `memory::kv_pool` and `prefetch`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod accumulate_decode;
pub(crate) mod accumulate_gemm;
pub(crate) mod build_views;
pub(crate) mod chunk_loop;
pub(crate) mod chunk_prefetch;
#[cfg(target_arch = "x86_64")]
pub(crate) mod decode;
pub(crate) mod f32;
pub(crate) mod kernel;
pub(crate) mod layer;
pub(crate) mod pack_queries;
pub(crate) mod packed_values;
pub(crate) mod query_blocks;
#[cfg(test)]
pub(crate) mod reference;
pub(crate) mod run;
pub(crate) mod scratch;
pub(crate) mod shared_prefix;
pub(crate) mod softmax;
pub(crate) mod staged_kv;
#[cfg(test)]
mod tests;
pub(crate) mod views;
pub(crate) mod work;

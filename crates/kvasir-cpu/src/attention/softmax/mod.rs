//! Online softmax over one KV chunk for 16 query rows (a row is one query head of one token).
//!
//! Per row, with the running maximum m, the denominator l and the accumulators O:
//!
//! 1. `begin`: scale or soft-cap the dot products, mask them, `m_new = max(m, S)`,
//!    `rescale = exp(m - m_new)`.
//! 2. `finish_weights`: `P = exp(S - m_new)`, rounded to bf16 and packed in pairs; chunk sums of P.
//! 3. `finish`: `l = l * rescale + sum(P)`. The caller rescales: `O = O * rescale + P V`.
//!
//! Everything is in base 2: scores are multiplied by log2(e), and `exp2` is a polynomial with the
//! same bits on every instruction set. `avx512.rs` has the AVX-512 versions, `decode.rs` those of
//! the decode path; `attention/tests.rs` checks that instruction sets agree.

pub(crate) mod accumulators;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod decode;
pub(crate) mod online;
pub(crate) mod pipeline;
pub(crate) mod state;

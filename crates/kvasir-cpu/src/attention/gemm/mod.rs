//! The two GEMMs of attention in bf16 with f32 accumulators: `S = Q K^T` (`scores`) and `O += P V`
//! (`values`).
//!
//! - `operands.rs`: their operands, and the work that is interleaved with them.
//! - `amx.rs`: AMX tiles. `avx512_bf16.rs`: bf16 pair dot products, in an order of summation of their
//!   own.
//! - `widened.rs`: f32 SIMD in the order of summation of AMX, bit-identical to it.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_bf16;
pub(crate) mod operands;
pub(crate) mod widened;

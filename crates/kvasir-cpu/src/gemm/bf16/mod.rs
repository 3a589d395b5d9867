//! bf16 GEMM and GEMV: bf16 weights times bf16 activations, f32 accumulators.
//!
//! - `activations.rs`: activations rounded or split to bf16, in AMX tile layout.
//! - `operands.rs`, `micro_kernel.rs`, `avx512.rs`, `avx512_bf16.rs`: one step of 16 x 32 x 16 without
//!   AMX. Attention uses it too.
//! - `gemv.rs`: up to four rows. `vector_gemm.rs`: more rows without AMX. `amx.rs`: AMX tiles.
//! - `product.rs`: work items and dispatch.
//!
//! Knows no op and no attention; builds on `weights::bf16` and `gemm::output`.

pub(crate) mod activations;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_bf16;
pub(crate) mod gemv;
pub(crate) mod micro_kernel;
pub(crate) mod operands;
pub(crate) mod product;
pub(crate) mod vector_gemm;

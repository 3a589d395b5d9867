//! GEMM and GEMV with floating-point weights: bf16 (VNNI pairs, AMX where available) and f32
//! arithmetic.
//!
//! - `panels.rs`, `f32_panels.rs`: packing of weights into panels of 16 outputs.
//! - `width.rs`, `octets.rs` (FP8 E4M3), `nibbles.rs` (MXFP4): storage formats that are dequantized
//!   to f32.
//! - `activations.rs`: activations rounded or split to bf16.
//! - `product.rs`: dispatch by ISA level and row count; `many.rs`: GEMM without AMX; `tiles.rs`:
//!   GEMM on AMX.

mod activations;
mod f32_panels;
mod gemm;
pub(crate) mod nibbles;
pub(crate) mod octets;
mod panels;
mod product;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod width;

pub(crate) use activations::{Bf16Activations, Taken, narrow};
pub(crate) use f32_panels::{F32Panels, matmul_f32};
pub(crate) use panels::Bf16Panels;
pub(crate) use product::{dot_step, matmul_bf16};
pub(crate) use width::{PART, Width};

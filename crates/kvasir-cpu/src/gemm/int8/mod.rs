//! Quantized GEMM and GEMV: block-quantized integer weights times int8 activations.
//!
//! Per superblock `s` of 256 inputs, with int8 weights `v` (unpacked from codes and sub-block
//! scales) and int8 activations `x`:
//!
//! `y[o] += x_scale[s] * (d[s][o] * factor * sum(v * x) - dmin[s][o] * sum(min * -sum_of_x))`
//!
//! Sums within a superblock are exact integers; across superblocks there is one f32 FMA chain per
//! output, in order. Hence every kernel gives the bits of `portable.rs`, and a row's result does
//! not depend on the batch. `tests.rs` compares all formats, instruction sets and row counts.
//!
//! - `activations.rs`, `quantize.rs`: quantization of activations to int8.
//! - `vectors.rs`, `unpack.rs`: vector operations, and unpacking of weights in registers.
//! - `gemv.rs` (`gemv_x86.rs`, `neon.rs`, `portable.rs`): up to four rows.
//! - `block.rs` (`panel_pair.rs`, `vnni.rs`, `amx.rs`): panel pairs times blocks of more rows.
//! - `product.rs`: work items and dispatch. `gated.rs`: fused gate and up projection.
//!
//! Knows no op; builds on `weights::int8` and `gemm::output`.

pub(crate) mod activations;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod block;
pub(crate) mod gated;
pub(crate) mod gemv;
#[cfg(target_arch = "x86_64")]
pub(crate) mod gemv_x86;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod panel_pair;
pub(crate) mod portable;
pub(crate) mod product;
pub(crate) mod quantize;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod unpack;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vectors;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vnni;

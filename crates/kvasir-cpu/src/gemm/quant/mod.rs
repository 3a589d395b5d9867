//! Quantized GEMM and GEMV: block-quantized integer weights times 16-bit integer activations.
//!
//! Per sub-block `b` of 16 or 32 inputs, with codes as stored and activations `x`:
//!
//! `y[o] += scale[b][o] * x_scale[b] * sum((value(code) - zero_point) * x) + min[b][o] * x_scale[b] *
//! sum(x)`
//!
//! Sums within a sub-block are exact integers; across sub-blocks there is one f32 chain per output,
//! in order. Hence every integer kernel gives the same bits, and a row's result does not depend on
//! the batch. `tests.rs` compares all formats, instruction sets and row counts with the portable
//! kernel bit by bit, and with f64 products.
//!
//! - `activations.rs`, `quantize.rs`: quantization of activations to 16 bits.
//! - `gemv.rs`: few rows. `gemm.rs`: blocks of more rows.
//! - `product.rs`: work items and dispatch. `gated.rs`: fused gate and up projection.
//!
//! Instruction sets with tiles multiply block-quantized weights as bf16 instead
//! (`weights::quant::dequantize`). Knows no op; builds on `weights::quant` and `gemm::output`.

pub(crate) mod activations;
pub(crate) mod gated;
pub(crate) mod gemm;
pub(crate) mod gemv;
pub(crate) mod product;
pub(crate) mod quantize;
#[cfg(test)]
mod tests;

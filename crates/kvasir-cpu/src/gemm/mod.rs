//! Matrix products `y = W x + bias`: GEMV for few rows (decode), GEMM for many (prefill, batches).
//!
//! - `quant/`: block-quantized weights x 16-bit activations. `bf16/`: bf16 x bf16. `f32/`: f32
//!   arithmetic on any stored width.
//! - `output.rs`: the rows that threads write in disjoint pieces. `linear.rs`: linear layers, which
//!   prepare activations once per operand and pick the family.
//!
//! Knows no op of a program and no attention; builds on `weights`, `prefetch`, `memory`, `threads`.

pub(crate) mod bf16;
pub(crate) mod f32;
pub(crate) mod linear;
pub(crate) mod output;
pub(crate) mod quant;
#[cfg(test)]
mod tests;

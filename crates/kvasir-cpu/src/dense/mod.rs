//! Weights that are floats: bf16 in pairs of inputs, and f32 for exact arithmetic.

mod activations;
mod f32_panels;
mod many;
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

//! Reference semantics of elementwise activations.

use crate::math::{gelu, sigmoid};
use kvasir_program::Elementwise;

/// Applies `function` to `x`.
pub(crate) fn elementwise(x: f32, function: Elementwise) -> f32 {
    match function {
        Elementwise::Gelu => gelu(x),
        Elementwise::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        Elementwise::Relu => x.max(0.0),
        Elementwise::Silu => x * sigmoid(x),
        Elementwise::Tanh => x.tanh(),
        Elementwise::Sigmoid => sigmoid(x),
        Elementwise::SignedSqrt if x == 0.0 => 0.0,
        Elementwise::SignedSqrt => x.abs().max(1e-6).sqrt().copysign(x),
    }
}

//! [`Activation`]: the gated activations of feed-forward blocks, experts and output gates.

use serde::{Deserialize, Serialize};

/// The gated activation of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// SwiGLU: gate * sigmoid(gate) * up.
    Silu,
    /// GeGLU: gelu(gate) * up, with the tanh approximation of GELU.
    GeluTanh,
    /// GeGLU: gelu(gate) * up, with the exact GELU (erf).
    Gelu,
    /// Output gate: sigmoid(gate) * up.
    Sigmoid,
    /// Product: gate * up.
    Identity,
    /// max(gate, 0) * up; relu² where both operands are equal.
    Relu,
    /// Clamped SwiGLU (gpt-oss): with g = min(gate, limit) and u = clamp(up, -limit, limit), g *
    /// sigmoid(alpha * g) * (u + 1).
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Clamping limit.
        limit: f32,
    },
    /// SwiGLU of clamped operands (GLM-5, DeepSeek-V4): with g = min(gate, limit) and u = clamp(up,
    /// -limit, limit), g * sigmoid(g) * u.
    LimitedSwiglu {
        /// Clamping limit.
        limit: f32,
    },
}

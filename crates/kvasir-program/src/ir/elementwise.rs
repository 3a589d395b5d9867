//! [`Elementwise`]: activation functions of one operand, for feed-forward blocks without a gate,
//! classification heads and gates.

use serde::{Deserialize, Serialize};

/// An activation function that is applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Elementwise {
    /// Exact GELU: x / 2 * (1 + erf(x / sqrt 2)).
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// x * sigmoid(x).
    Silu,
    /// tanh(x).
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// sign(x) * sqrt(max(|x|, 1e-6)).
    SignedSqrt,
}

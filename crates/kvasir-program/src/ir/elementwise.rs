//! [`Elementwise`]: activation functions of one operand, of feed-forward blocks without a gate and of
//! classification heads.

use serde::{Deserialize, Serialize};

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Elementwise {
    /// GELU by the error function: x / 2 * (1 + erf(x / sqrt 2)).
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// x * sigmoid(x).
    Silu,
    /// tanh(x).
    Tanh,
}

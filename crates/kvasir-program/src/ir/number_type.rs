//! [`NumberType`]: the number types of reference implementations.

use serde::{Deserialize, Serialize};

/// The number type that the model's reference implementation gives an op's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberType {
    /// IEEE binary32.
    #[default]
    F32,
    /// IEEE binary16: 5 exponent bits.
    F16,
    /// bfloat16: 8 exponent bits.
    Bf16,
}

//! The kernel family that a packed matrix uses; reported to users in load and benchmark output.

use std::fmt;

/// The kernel family that multiplies a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Integer kernels: superblocks of codes at their stored width, int8 activations.
    Quantised,
    /// bf16 kernels.
    Bf16,
    /// f32 arithmetic.
    F32,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quantised => "integer panels",
            Self::Bf16 => "bf16 panels",
            Self::F32 => "f32 panels",
        })
    }
}

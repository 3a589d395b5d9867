use std::fmt;

/// Which kernels a matrix goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Integers in superblocks, at their stored width.
    Quantised,
    /// Pairs of bf16.
    Bf16,
    /// f32.
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

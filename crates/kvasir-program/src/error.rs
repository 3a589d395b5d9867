//! Errors of a program build. Each names the config key or the tensor that is wrong.

use std::fmt;

/// Why no program can be built from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramError {
    /// The architecture is not in the table of `arch/mod.rs`.
    UnknownArchitecture {
        /// Its name in the file.
        name: String,
        /// The most similar name in the table.
        nearest: &'static str,
    },
    /// A value of a GGUF file's metadata is missing or invalid.
    Metadata {
        /// Its key, without the architecture's prefix.
        key: String,
        /// What is wrong with it; reads after the key.
        why: String,
    },
    /// A config value is missing or invalid.
    Config {
        /// Its key, with a dotted path.
        key: String,
        /// What is wrong with it; reads after the key.
        why: String,
    },
    /// A tensor that the architecture needs is missing from the checkpoint.
    Missing(String),
    /// A tensor's shape differs from the one that the config implies.
    Misshapen {
        /// Its name.
        name: String,
        /// The shape that the config implies.
        expected: Vec<usize>,
        /// The shape in the checkpoint.
        found: Vec<usize>,
    },
    /// Tensors that the architecture does not use.
    Unused {
        /// Name of the first one.
        name: String,
        /// Number of such tensors.
        count: usize,
    },
}

impl ProgramError {
    pub(crate) fn metadata(key: &str, why: impl fmt::Display) -> Self {
        Self::Metadata { key: key.to_owned(), why: why.to_string() }
    }

    pub(crate) fn config(key: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Config { key: key.into(), why: why.to_string() }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownArchitecture { name, nearest } => {
                write!(f, "architecture {name:?} is not known; the nearest known one is {nearest:?}")
            }
            Self::Metadata { key, why } => write!(f, "metadata: {key} {why}"),
            Self::Config { key, why } => write!(f, "config: {key} {why}"),
            Self::Missing(name) => write!(f, "tensor {name} is missing"),
            Self::Misshapen { name, expected, found } => {
                write!(f, "tensor {name} has shape {found:?}, the config says {expected:?}")
            }
            Self::Unused { name, count: 1 } => write!(f, "tensor {name} is not part of this architecture"),
            Self::Unused { name, count } => {
                write!(f, "tensor {name} and {} others are not part of this architecture", count - 1)
            }
        }
    }
}

impl std::error::Error for ProgramError {}

/// A result whose error names a key or a tensor.
pub type Result<T> = std::result::Result<T, ProgramError>;

use std::fmt;

/// Why no program can be made of a checkpoint. Names the key or the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// No file here builds this architecture.
    UnknownArchitecture(String),
    /// A config value is absent, or makes no sense.
    Config {
        /// Its key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A tensor that the architecture needs is not there.
    Missing(String),
    /// A tensor has another shape than the config says.
    Misshapen {
        /// Its name.
        name: String,
        /// The shape that the config says.
        expected: Vec<usize>,
        /// The shape it has.
        found: Vec<usize>,
    },
    /// Tensors that the architecture has no use for: the first one's name, and how many there are.
    Unused {
        /// Name of the first.
        name: String,
        /// How many.
        count: usize,
    },
}

impl ProgramError {
    pub(crate) fn config(key: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Config { key: key.into(), why: why.to_string() }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownArchitecture(name) => {
                let known: Vec<&str> = crate::Architecture::all().map(|a| a.name).collect();
                write!(f, "architecture {name:?} is not known; known are {}", known.join(", "))
            }
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

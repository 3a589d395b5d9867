//! [`TokenizerError`]: errors of tokenizer processes.

use std::{fmt, io};

/// Error of [`TokenizerPool::start`](crate::TokenizerPool::start) or
/// [`run_tokenizer`](crate::run_tokenizer).
#[derive(Debug)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A socket, a process or a thread cannot be created.
    Io(io::Error),
    /// A process ended before it was ready.
    Ended {
        /// Index of the process.
        tokenizer: usize,
        /// How it ended.
        why: String,
    },
    /// The version, model or options of a process differ from those of the front.
    Refused {
        /// What differs.
        why: String,
    },
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "tokenizer processes: {error}"),
            Self::Ended { tokenizer, why } => {
                write!(f, "tokenizer process {tokenizer} could not start: {why}")
            }
            Self::Refused { why } => write!(f, "a tokenizer process does not match the server: {why}"),
        }
    }
}

impl std::error::Error for TokenizerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Ended { .. } | Self::Refused { .. } => None,
        }
    }
}

impl From<io::Error> for TokenizerError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

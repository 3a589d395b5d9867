//! Error type of the library.

use std::fmt;

/// Why a model could not be opened or run.
#[derive(Debug)]
pub enum Error {
    /// Invalid model files.
    Format(kvasir_formats::Error),
    /// The checkpoint's architecture cannot be built.
    Program(kvasir_program::ProgramError),
    /// Invalid argument; the message names the parameter.
    Asked(String),
    /// Execution failed.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(e) => e.fmt(f),
            Self::Program(e) => e.fmt(f),
            Self::Asked(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl Error {
    /// Adds the index of the prompt concerned.
    pub(crate) fn of_prompt(self, n: usize) -> Self {
        match self {
            Self::Asked(why) => Self::Asked(format!("prompt {n}: {why}")),
            other => other,
        }
    }
}

impl std::error::Error for Error {}

impl From<kvasir_formats::Error> for Error {
    fn from(e: kvasir_formats::Error) -> Self {
        Self::Format(e)
    }
}

impl From<kvasir_program::ProgramError> for Error {
    fn from(e: kvasir_program::ProgramError) -> Self {
        Self::Program(e)
    }
}

//! Error type of the library.

use kvasir_chat::ChatError;
use kvasir_engine::{ConfigError, Refusal};
use std::fmt;

/// Why a model could not be opened or run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Invalid model files.
    Format(kvasir_formats::Error),
    /// The checkpoint's architecture cannot be built.
    Program(kvasir_program::ProgramError),
    /// The configuration of an engine is invalid, or two of its parameters exclude each other.
    Config(ConfigError),
    /// A chat cannot be rendered, or its answer cannot be constrained.
    Chat(ChatError),
    /// The engine refused a request.
    Refused(Refusal),
    /// An argument is invalid.
    InvalidArgument {
        /// Name of the parameter.
        parameter: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// One of several prompts was refused; none of them runs.
    Prompt {
        /// Its index.
        index: usize,
        /// Why it was refused.
        error: Box<Error>,
    },
    /// Execution failed.
    Failed(String),
}

impl Error {
    /// Reports an invalid argument.
    pub(crate) fn invalid(parameter: &'static str, reason: impl fmt::Display) -> Self {
        Self::InvalidArgument { parameter, reason: reason.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(e) => e.fmt(f),
            Self::Program(e) => e.fmt(f),
            Self::Config(e) => e.fmt(f),
            Self::Chat(e) => e.fmt(f),
            Self::Refused(e) => e.fmt(f),
            Self::InvalidArgument { parameter, reason } => write!(f, "{parameter}: {reason}"),
            Self::Prompt { index, error } => write!(f, "prompt {index}: {error}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Format(e) => Some(e),
            Self::Program(e) => Some(e),
            Self::Config(e) => Some(e),
            Self::Chat(e) => Some(e),
            Self::Refused(e) => Some(e),
            Self::Prompt { error, .. } => Some(error),
            Self::InvalidArgument { .. } | Self::Failed(_) => None,
        }
    }
}

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

impl From<ChatError> for Error {
    fn from(e: ChatError) -> Self {
        Self::Chat(e)
    }
}

impl From<ConfigError> for Error {
    fn from(e: ConfigError) -> Self {
        Self::Config(e)
    }
}

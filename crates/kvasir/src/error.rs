use std::fmt;

/// Why a model could not be opened or run.
#[derive(Debug)]
pub enum Error {
    /// A file is not what it should be.
    Format(kvasir_formats::Error),
    /// No program can be made of the checkpoint.
    Program(kvasir_program::ProgramError),
    /// What was asked for does not fit the model or does not go together; names the parameter.
    Asked(String),
    /// It was run and failed.
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
    /// The same, about the `n`-th of several prompts.
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

//! Command line errors: one line on stderr and an exit code (2 for usage, 1 for failures).

use kvasir::{ConfigError, Error};
use std::{
    fmt::{self, Write},
    io::Read,
    path::Path,
    process::ExitCode,
};

/// Why a command failed: what, where, and what to do.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Invalid arguments or input; exit code 2.
    Usage(String),
    /// A valid command failed; exit code 1.
    Failed(String),
}

impl Failure {
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self::Usage(why.to_string())
    }

    pub(crate) fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(why.to_string())
    }

    /// Reads a text file named by the user.
    pub(crate) fn read(path: &Path) -> Result<String, Self> {
        std::fs::read_to_string(path).map_err(|e| Self::Usage(format!("{}: {e}", path.display())))
    }

    /// Reads a text file that an option names.
    pub(crate) fn read_option(option: &str, path: &Path) -> Result<String, Self> {
        Self::read(path).map_err(|error| Self::usage(format!("{option} {error}")))
    }

    /// A file named by the user could not be written.
    pub(crate) fn write(path: &Path, error: &std::io::Error) -> Self {
        Self::Failed(format!("{}: {error}", path.display()))
    }

    /// Reads all of stdin as text.
    pub(crate) fn read_stdin() -> Result<String, Self> {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|e| Self::Usage(format!("stdin: {e}")))?;
        Ok(text)
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Control characters are escaped, so the message stays one line.
            Self::Usage(why) | Self::Failed(why) => why.chars().try_for_each(|c| {
                if c.is_control() { write!(f, "{}", c.escape_default()) } else { f.write_char(c) }
            }),
        }
    }
}

/// The flag that sets a parameter of the library.
fn flag(parameter: &str) -> String {
    match parameter {
        "speculation" => "--spec".into(),
        // A property of the model, not an option.
        "recurrent_layers" => "recurrent layers".into(),
        "window_groups" => "window groups".into(),
        _ => format!("--{}", parameter.replace('_', "-")),
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.message(flag))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(error) => error.into(),
            // These parameters have flags.
            Error::InvalidArgument {
                parameter:
                    name @ ("speculation" | "kv_capacity" | "kv_dtype" | "batch_sizes" | "generation_config"),
                reason,
            } => Self::usage(format!("{}: {reason}", flag(name))),
            // The reason is a complete message.
            Error::InvalidArgument { parameter: "model" | "backend", reason } => Self::Usage(reason),
            Error::InvalidArgument { .. } | Error::Refused(_) | Error::Prompt { .. } => Self::usage(error),
            other => Self::failed(other),
        }
    }
}

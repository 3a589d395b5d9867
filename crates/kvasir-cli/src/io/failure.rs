//! Command line errors: one line on stderr and an exit code (2 for usage, 1 for failures).

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
            Self::Usage(why) | Self::Failed(why) => why.chars().try_for_each(|c| match c.is_control() {
                true => write!(f, "{}", c.escape_default()),
                false => f.write_char(c),
            }),
        }
    }
}

impl From<kvasir::Error> for Failure {
    fn from(e: kvasir::Error) -> Self {
        match e {
            kvasir::Error::Asked(why) => Self::Usage(why),
            other => Self::failed(other),
        }
    }
}

use std::{
    fmt::{self, Write},
    io::Read,
    path::Path,
    process::ExitCode,
};

/// Why a command ended early: one line that says what, where, and what to do.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for makes no sense; exit code 2.
    Usage(String),
    /// It made sense and did not work; exit code 1.
    Failed(String),
}

impl Failure {
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self::Usage(why.to_string())
    }

    pub(crate) fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(why.to_string())
    }

    /// Reads a text file that the user named.
    pub(crate) fn read(path: &Path) -> Result<String, Self> {
        std::fs::read_to_string(path).map_err(|e| Self::Usage(format!("{}: {e}", path.display())))
    }

    /// A file that the user named could not be written.
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
            // One line, whatever the name of a file or a value in it holds.
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

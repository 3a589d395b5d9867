use std::{fmt, path::Path, process::ExitCode};

/// Why a command ended early: one line that says what, where, and what to do.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for makes no sense; exit code 2.
    Usage(String),
}

impl Failure {
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self::Usage(why.to_string())
    }

    /// Reads a text file that the user named.
    pub(crate) fn read(path: &Path) -> Result<String, Self> {
        std::fs::read_to_string(path).map_err(|e| Self::Usage(format!("{}: {e}", path.display())))
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) => f.write_str(why),
        }
    }
}

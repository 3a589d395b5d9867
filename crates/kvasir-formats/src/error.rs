//! The error type of this crate: a reason and the place in a file.

use kvasir_template::TemplateError;
use std::{fmt, path::Path};

/// A malformed or unsupported file: the place (file, offset, tensor or key) and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    place: String,
    why: String,
}

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error. `place` is a file, offset, tensor or key; `why` is one line.
    pub fn at(place: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self { place: place.to_string(), why: why.to_string() }
    }

    /// Prefixes the place with a file path.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        let file = path.display();
        let place = if self.place.is_empty() { file.to_string() } else { format!("{file}: {}", self.place) };
        Self { place, why: self.why }
    }

    /// The place of the error.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The reason, in one line.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() { f.write_str(&self.why) } else { write!(f, "{}: {}", self.place, self.why) }
    }
}

impl std::error::Error for Error {}

impl From<TemplateError> for Error {
    fn from(error: TemplateError) -> Self {
        match error.line() {
            Some(line) => Self::at(format!("template line {line}"), error.why()),
            None => Self::at("template", error.why()),
        }
    }
}

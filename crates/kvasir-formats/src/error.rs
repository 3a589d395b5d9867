use std::{fmt, path::Path};

/// What is wrong with a file, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    place: String,
    why: String,
}

/// A result whose error names a place.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `place` is a file, an offset, a tensor or a key; `why` is one line.
    pub fn at(place: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self { place: place.to_string(), why: why.to_string() }
    }

    /// Puts the file's name before the place.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        let file = path.display();
        let place = if self.place.is_empty() { file.to_string() } else { format!("{file}: {}", self.place) };
        Self { place, why: self.why }
    }

    /// Where.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Why.
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

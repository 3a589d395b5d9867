//! Template errors with their source line.

use crate::Error;

/// A compile or render error.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) line: Option<usize>,
    pub(super) why: String,
}

pub(super) type Run<T> = Result<T, Fault>;

impl Fault {
    /// Creates an error without a line; the enclosing statement or expression adds it.
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { line: None, why: why.into() }
    }

    pub(super) fn at(line: usize, why: impl Into<String>) -> Self {
        Self { line: Some(line), why: why.into() }
    }

    /// Sets the line unless an inner one is already set.
    pub(super) fn on(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault.line {
            Some(line) => Self::at(format!("template line {line}"), fault.why),
            None => Self::at("template", fault.why),
        }
    }
}

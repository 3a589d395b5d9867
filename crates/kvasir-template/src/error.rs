//! `TemplateError`: why a template did not compile or render, with its source line.

use std::fmt;

/// A compile or render error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    pub(crate) line: Option<usize>,
    pub(crate) why: String,
}

/// Result with this crate's [`TemplateError`].
pub(crate) type Run<T> = Result<T, TemplateError>;

impl TemplateError {
    /// Creates an error without a line; the enclosing statement or expression adds it.
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { line: None, why: why.into() }
    }

    pub(crate) fn at(line: usize, why: impl Into<String>) -> Self {
        Self { line: Some(line), why: why.into() }
    }

    /// Sets the line unless an inner one is already set.
    pub(crate) fn on(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }

    /// The source line, from 1.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// The reason, in one line.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "template line {line}: {}", self.why),
            None => write!(f, "template: {}", self.why),
        }
    }
}

impl std::error::Error for TemplateError {}

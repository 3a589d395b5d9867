use crate::Error;

/// Why a template did not compile or render, and on which line.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) line: Option<usize>,
    pub(super) why: String,
}

pub(super) type Run<T> = Result<T, Fault>;

impl Fault {
    /// The line is filled in by the statement or expression that runs.
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { line: None, why: why.into() }
    }

    pub(super) fn at(line: usize, why: impl Into<String>) -> Self {
        Self { line: Some(line), why: why.into() }
    }

    /// Keeps the innermost line.
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

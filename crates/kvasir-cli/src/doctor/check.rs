//! Result of one `doctor` check: state, finding, advice and values, as text or JSON.

use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Ok,
    /// Works, but below its potential.
    Warn,
    /// Something requested will not work.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    /// Subject of the check.
    name: &'static str,
    state: State,
    /// Finding.
    found: String,
    /// Recommended action.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// Machine-readable values.
    #[serde(skip_serializing_if = "Map::is_empty")]
    values: Map<String, Value>,
}

impl Check {
    fn new(state: State, name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), advice: None, values: Map::new() }
    }

    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(State::Ok, name, found)
    }

    pub(crate) fn warn(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(State::Warn, name, found)
    }

    pub(crate) fn fail(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(State::Fail, name, found)
    }

    pub(crate) fn found(self, found: impl Into<String>) -> Self {
        Self { found: found.into(), ..self }
    }

    pub(crate) fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    pub(crate) fn value(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }
}

/// All checks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) checks: Vec<Check>,
}

impl Report {
    /// Whether no check failed.
    pub(crate) fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Fail)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Warn => "warn",
                State::Fail => "FAIL",
            };
            writeln!(f, "{state:<4}  {:<10}  {}", check.name, check.found)?;
            if let Some(advice) = &check.advice {
                writeln!(f, "{:<18}→ {advice}", "")?;
            }
        }
        Ok(())
    }
}

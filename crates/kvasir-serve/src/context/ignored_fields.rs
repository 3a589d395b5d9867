//! Ignored and unknown request fields: recorded for the `x-kvasir-ignored` header, or rejected
//! (`--unknown-fields`).
//!
//! A field is unknown if neither the endpoint's table nor the reader of its object names it.
//! Clients introduce new fields often, so unknown fields are accepted by default.

use crate::error::ApiError;
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum names recorded per request.
const MAX_NAMES: usize = 32;
/// Maximum length of a recorded name, in bytes.
const MAX_NAME: usize = 96;

/// `--unknown-fields`: treatment of a request with unknown fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownFields {
    /// Serve it without the field, and name the field in the header `x-kvasir-ignored`.
    #[default]
    Ignore,
    /// Reject it with 400.
    Refuse,
}

/// Record of a request's ignored fields. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct IgnoredFields {
    rule: UnknownFields,
    names: Arc<Mutex<Vec<String>>>,
}

impl IgnoredFields {
    /// Shares the list under another rule.
    pub fn with_rule(&self, rule: UnknownFields) -> Self {
        Self { rule, names: self.names.clone() }
    }

    /// Records an unknown field by its path, or rejects it.
    pub fn unknown(&self, path: &str) -> Result<(), ApiError> {
        match self.rule {
            UnknownFields::Refuse => Err(ApiError::unknown_field(path)),
            UnknownFields::Ignore => {
                self.record(path);
                Ok(())
            }
        }
    }

    /// Records a known field without effect, regardless of the rule.
    pub fn record(&self, path: &str) {
        let name = header_name(path);
        let mut names = self.lock();
        if names.len() < MAX_NAMES && !names.contains(&name) {
            names.push(name);
        }
    }

    /// Recorded names in order of first appearance.
    pub fn names(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Normalizes a path for a header: list indices removed, printable ASCII, bounded length.
fn header_name(path: &str) -> String {
    let mut name = String::new();
    let mut in_index = false;
    for c in path.chars() {
        match c {
            '[' => in_index = true,
            ']' => in_index = false,
            _ => {}
        }
        if in_index && c.is_ascii_digit() {
            continue;
        }
        name.push(if c.is_ascii_graphic() && c != ',' { c } else { '?' });
        if name.len() == MAX_NAME {
            break;
        }
    }
    name
}

/// Maximum number of distinct field names logged.
const MAX_LOGGED: usize = 1024;

/// Names of ignored fields that have been logged, each once per process.
#[derive(Debug, Default)]
pub(crate) struct LoggedFields(Mutex<HashSet<String>>);

impl LoggedFields {
    pub(crate) fn first_time(&self, mut names: Vec<String>) -> Vec<String> {
        if !names.is_empty() {
            let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            names.retain(|name| logged.len() < MAX_LOGGED && logged.insert(name.clone()));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recorded_once_and_fit_a_header() {
        let ignored = IgnoredFields::default();
        for path in ["messages[0].junk", "messages[17].junk", "a,b\nc", "käse", &"x".repeat(1000)] {
            ignored.unknown(path).unwrap();
        }
        let names = ignored.names();
        assert_eq!(names[..3], ["messages[].junk", "a?b?c", "k?se"]);
        assert_eq!(names[3].len(), MAX_NAME);
        (0..100).for_each(|i| ignored.record(&format!("field{i}")));
        assert_eq!(ignored.names().len(), MAX_NAMES);
    }

    #[test]
    fn refusal_names_the_field_and_records_nothing() {
        let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
        let error = ignored.unknown("tools[3].x").unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("tools[3].x"), Some("unknown_parameter")));
        assert!(ignored.names().is_empty());
    }
}

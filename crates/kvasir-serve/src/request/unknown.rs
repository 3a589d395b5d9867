//! Request fields without effect: recorded by name for the response, or refused, as `--unknown-fields` says.
//!
//! A field is unknown when neither the endpoint's table nor the reader of its object names it. Clients send new fields
//! every month, so an unknown field is accepted by default; the response names it in `x-kvasir-ignored`.

use crate::ApiError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most names that one request records.
const MAX_NAMES: usize = 32;
/// Most bytes of one recorded name.
const MAX_NAME: usize = 96;

/// `--unknown-fields`: what happens to a request with a field that the server does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownFields {
    /// It is served without the field, whose name goes into the response header `x-kvasir-ignored`.
    #[default]
    Ignore,
    /// It gets 400.
    Refuse,
}

/// Names of a request's fields that have no effect. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct IgnoredFields {
    rule: UnknownFields,
    names: Arc<Mutex<Vec<String>>>,
}

impl IgnoredFields {
    /// The same list under this rule.
    pub fn with_rule(&self, rule: UnknownFields) -> Self {
        Self { rule, names: self.names.clone() }
    }

    /// Records an unknown field by its path, or refuses it.
    pub fn unknown(&self, path: &str) -> Result<(), ApiError> {
        match self.rule {
            UnknownFields::Refuse => Err(ApiError::unknown_field(path)),
            UnknownFields::Ignore => {
                self.record(path);
                Ok(())
            }
        }
    }

    /// Records a field that is known and has no effect here, whatever the rule.
    pub fn record(&self, path: &str) {
        let name = header_name(path);
        let mut names = self.lock();
        if names.len() < MAX_NAMES && !names.contains(&name) {
            names.push(name);
        }
    }

    /// The recorded names, in the order of their first appearance.
    pub fn names(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for IgnoredFields {
    fn eq(&self, other: &Self) -> bool {
        self.rule == other.rule && self.names() == other.names()
    }
}

/// The path without list indices, as printable ASCII of bounded length: fit for a header and equal for equal fields.
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

//! A request field and its treatment: supported, ignored by contract, or rejected.

use serde_json::Value;

/// Treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Implemented as documented.
    Supported,
    /// Accepted without effect, by contract; holds the reason.
    Ignored(&'static str),
    /// Rejected with 400 unless it has its neutral value; holds the reason.
    Rejected(&'static str),
}

/// A request field of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in the body.
    pub name: &'static str,
    /// Its treatment.
    pub class: Class,
    /// JSON text of a neutral value, in addition to `null`, `false`, `""`, `[]` and `{}`.
    pub neutral: Option<&'static str>,
    /// For lists of objects: known fields of an item; others are skipped.
    pub items: Option<&'static [&'static str]>,
}

impl Field {
    const fn new(name: &'static str, class: Class) -> Self {
        Self { name, class, neutral: None, items: None }
    }

    /// Whether this value requests the default behavior.
    pub fn is_neutral(&self, value: &Value) -> bool {
        let is_empty = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) | Value::Number(_) => false,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
        };
        let neutral = self.neutral.and_then(|text| serde_json::from_str::<Value>(text).ok());
        let equal = |neutral: Value| match (neutral.as_f64(), value.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => neutral == *value,
        };
        is_empty || neutral.is_some_and(equal)
    }
}

/// A supported field.
pub(super) const fn yes(name: &'static str) -> Field {
    Field::new(name, Class::Supported)
}

/// A supported list of objects with these fields.
pub(super) const fn list(name: &'static str, items: &'static [&'static str]) -> Field {
    Field { items: Some(items), ..Field::new(name, Class::Supported) }
}

/// Accepted without effect.
pub(super) const fn skip(name: &'static str, why: &'static str) -> Field {
    Field::new(name, Class::Ignored(why))
}

/// Rejected unless it has no effect.
pub(super) const fn no(name: &'static str, why: &'static str) -> Field {
    Field::new(name, Class::Rejected(why))
}

/// Rejected unless it has this value, which is the default behavior.
pub(super) const fn only(name: &'static str, neutral: &'static str, why: &'static str) -> Field {
    Field { neutral: Some(neutral), ..no(name, why) }
}

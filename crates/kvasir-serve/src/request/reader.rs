//! Typed access to the fields of a JSON object; every error names the field by its path.

use crate::context::ignored_fields::IgnoredFields;
use crate::error::ApiError;
use crate::request::field::{Class, Field};
use serde_json::{Map, Value};
use std::{fmt::Display, ops::RangeInclusive};

/// A JSON object of a request, with its path and the record of ignored fields.
pub struct Reader<'a> {
    map: &'a Map<String, Value>,
    path: String,
    ignored: &'a IgnoredFields,
}

impl<'a> Reader<'a> {
    /// A reader over the body.
    pub fn new(map: &'a Map<String, Value>, ignored: &'a IgnoredFields) -> Self {
        Self { map, path: String::new(), ignored }
    }

    /// A reader over a nested object, by its full path.
    pub fn at(&self, map: &'a Map<String, Value>, path: impl Into<String>) -> Self {
        Self { map, path: path.into(), ignored: self.ignored }
    }

    /// A reader over another body derived from this one.
    pub fn derived<'b>(&'b self, map: &'b Map<String, Value>) -> Reader<'b> {
        Reader::new(map, self.ignored)
    }

    /// Validates fields against the endpoint's table: rejects unsupported ones with non-neutral
    /// values; records or rejects unknown ones.
    pub fn classify(&self, table: &[Field]) -> Result<(), ApiError> {
        for (name, value) in self.map {
            match table.iter().find(|field| field.name == name) {
                None => self.unknown(name)?,
                Some(field) => match field.class {
                    Class::Rejected(why) if !field.is_neutral(value) => {
                        return Err(ApiError::unsupported(name, why));
                    }
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// A reader over the object at `index` of a list field.
    pub fn item(&self, field: &str, index: usize, value: &'a Value) -> Result<Self, ApiError> {
        let field = format!("{field}[{index}]");
        let map = value.as_object().ok_or_else(|| self.error(&field, "must be an object"))?;
        Ok(self.at(map, self.name(&field)))
    }

    /// Records or rejects an unknown field, or an unknown value of one.
    pub fn unknown(&self, field: &str) -> Result<(), ApiError> {
        self.ignored.unknown(&self.name(field))
    }

    /// Records a field, or a value of it, as ignored.
    pub fn ignore(&self, field: &str) {
        self.ignored.record(&self.name(field));
    }

    /// Full path of a field.
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// A 400 error about a field.
    pub fn error(&self, field: &str, why: impl Display) -> ApiError {
        let name = self.name(field);
        ApiError::param(&name, format!("`{name}` {why}"))
    }

    /// A field's value; `None` if absent or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// A required field.
    pub fn need(&self, field: &str) -> Result<&'a Value, ApiError> {
        self.get(field).ok_or_else(|| self.error(field, "is missing"))
    }

    /// Records or rejects fields that are not listed. Null values are skipped: clients send
    /// responses back with all fields they know.
    pub fn only(&self, fields: &[&str]) -> Result<(), ApiError> {
        let set = self.map.iter().filter(|(_, value)| !value.is_null());
        let mut unknown = set.filter(|(key, _)| !fields.contains(&key.as_str()));
        unknown.try_for_each(|(key, _)| self.unknown(key))
    }

    /// A string field.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| self.error(field, "must be a text"));
        self.get(field).map(text).transpose()
    }

    /// A required string field.
    pub fn need_text(&self, field: &str) -> Result<&'a str, ApiError> {
        self.text(field)?.ok_or_else(|| self.error(field, "is missing"))
    }

    /// A boolean field.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool, ApiError> {
        let flag = |value: &Value| value.as_bool().ok_or_else(|| self.error(field, "must be true or false"));
        self.get(field).map_or(Ok(default), flag)
    }

    /// An integer field within bounds.
    pub fn integer(&self, field: &str, bounds: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let (low, high) = (*bounds.start(), *bounds.end());
        let integer = |value: &Value| {
            // 3.0 counts as an integer: clients in languages with a single number type send it.
            let whole = value
                .as_i64()
                .or_else(|| value.as_f64().filter(|v| v.fract() == 0.0 && v.abs() < 9e15).map(|v| v as i64));
            let fits = whole.filter(|n| bounds.contains(n));
            fits.ok_or_else(|| {
                self.error(
                    field,
                    format!("must be a whole number from {low} to {high}, not {}", short(value)),
                )
            })
        };
        self.get(field).map(integer).transpose()
    }

    /// A number field within bounds.
    pub fn number(&self, field: &str, bounds: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let (low, high) = (*bounds.start(), *bounds.end());
        let number = |value: &Value| {
            let fits = value.as_f64().filter(|n| bounds.contains(n));
            fits.map(|n| n as f32).ok_or_else(|| {
                self.error(field, format!("must be a number from {low} to {high}, not {}", short(value)))
            })
        };
        self.get(field).map(number).transpose()
    }

    /// A list field with at most `max` items.
    pub fn list(&self, field: &str, max: usize) -> Result<Option<&'a [Value]>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let items = value.as_array().ok_or_else(|| self.error(field, "must be a list"))?;
        if items.len() <= max {
            Ok(Some(items))
        } else {
            Err(self.error(field, format!("may have at most {max} items, not {}", items.len())))
        }
    }

    /// An object field.
    pub fn object(&self, field: &str) -> Result<Option<Reader<'a>>, ApiError> {
        let object = |value: &'a Value| {
            let map = value.as_object().ok_or_else(|| self.error(field, "must be an object"))?;
            Ok(self.at(map, self.name(field)))
        };
        self.get(field).map(object).transpose()
    }

    /// A required object field.
    pub fn need_object(&self, field: &str) -> Result<Reader<'a>, ApiError> {
        self.object(field)?.ok_or_else(|| self.error(field, "is missing"))
    }

    /// All fields.
    pub fn fields(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// The whole object as a value.
    pub fn to_value(&self) -> Value {
        Value::Object(self.map.clone())
    }
}

/// A value for an error message; lists, objects and strings are not quoted.
fn short(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(_) => "a text".into(),
        other => other.to_string(),
    }
}

//! Iteration of values: lists, the keys of mappings, and the characters of strings.

use crate::error::{Run, TemplateError};
use crate::state::Interp;
use crate::values::value::Value;

/// The items that a `for` loop over the value iterates.
pub(crate) fn iterate(interp: &mut Interp, value: &Value) -> Run<Vec<Value>> {
    match value {
        Value::Undefined(m) if !m.unsafe_access => Ok(Vec::new()),
        Value::List(l) | Value::Tuple(l) | Value::View(l, _) => {
            interp.room_for(l.items.len())?;
            Ok(l.items.clone())
        }
        Value::Dict(d) => {
            interp.room_for(d.map.len())?;
            Ok(d.map.keys().map(|k| k.0.clone()).collect())
        }
        Value::Str(s) => {
            interp.room_for(s.len())?;
            let mut buffer = [0; 4];
            Ok(s.chars().map(|c| Value::str(c.encode_utf8(&mut buffer))).collect())
        }
        other => Err(other.missing().unwrap_or_else(|| {
            TemplateError::new(format!("'{}' object is not iterable", other.type_name()))
        })),
    }
}

//! Attribute and item access, slices and iteration of Jinja values, as Jinja2's sandbox defines
//! them.

use crate::builtins::methods;
use crate::error::{Run, TemplateError};
use crate::state::Interp;
use crate::values::value::{Missing, Value};
use std::sync::Arc;

/// Mutating methods, which Jinja's immutable sandbox refuses.
fn changes(value: &Value, name: &str) -> bool {
    match value {
        Value::List(_) => {
            matches!(name, "append" | "clear" | "pop" | "reverse" | "insert" | "sort" | "extend" | "remove")
        }
        Value::Dict(_) => matches!(name, "clear" | "pop" | "popitem" | "setdefault" | "update"),
        _ => false,
    }
}

impl Interp {
    /// `object.name`: attributes take precedence over items.
    pub(crate) fn attr(&mut self, object: &Value, name: &Arc<str>) -> Run<Value> {
        if let Some(fault) = object.missing() {
            return Err(fault);
        }
        if changes(object, name) {
            return Ok(refused(object, name));
        }
        // Methods of a safe string return safe strings.
        if methods::exists(object, name) {
            return Ok(Value::Method(Arc::new((object.clone(), name.clone()))));
        }
        match object {
            Value::Dict(d) => {
                Ok(d.get(&Value::Str(name.clone())).cloned().unwrap_or_else(|| self.nothing(object, name)))
            }
            Value::Namespace(id) => {
                let found = self
                    .namespaces
                    .get(*id)
                    .and_then(|n| n.get(&crate::values::value::Key(Value::Str(name.clone()))))
                    .cloned();
                found.iter().for_each(|value| self.held_while_read(value));
                Ok(found.unwrap_or_else(|| self.nothing(object, name)))
            }
            Value::Loop(id) => self.loop_attr(*id, name),
            Value::Tuple(t) if t.items.len() == 2 && matches!(&**name, "grouper" | "list") => {
                // A `groupby` pair.
                Ok(t.items.get(usize::from(&**name == "list")).cloned().unwrap_or(Value::None))
            }
            Value::Macro(m, _) if &**name == "name" => Ok(Value::Str(m.name.clone())),
            Value::Cycler(id) if &**name == "current" => {
                let state = self.cyclers.get(*id);
                Ok(state.and_then(|(items, at)| items.get(*at)).cloned().unwrap_or(Value::None))
            }
            _ => Ok(self.nothing(object, name)),
        }
    }

    fn nothing(&self, object: &Value, name: &str) -> Value {
        // Keys may be of any length; the message keeps the first 200 characters.
        let name: String = name.chars().take(200).collect();
        Value::undefined(&format!("'{} object' has no attribute '{name}', which", object.type_name()))
    }

    /// `object[key]`: items take precedence over attributes.
    pub(crate) fn item(&mut self, object: &Value, key: &Value) -> Run<Value> {
        if let Some(fault) = object.missing() {
            return Err(fault);
        }
        let found = match object {
            Value::Dict(d) => match key {
                Value::List(_) | Value::Dict(_) => None,
                _ => d.get(key).cloned(),
            },
            Value::List(l) | Value::Tuple(l) => {
                key.as_int().and_then(|i| index(i, l.items.len())).and_then(|i| l.items.get(i)).cloned()
            }
            Value::Str(s) => match key.as_int() {
                Some(i) => {
                    self.work(s.len())?;
                    let count = s.chars().count();
                    index(i, count).and_then(|i| s.chars().nth(i)).map(|c| Value::str(c.to_string()))
                }
                None => None,
            },
            _ => None,
        };
        match (found, key) {
            (Some(value), _) => Ok(value),
            (None, Value::Str(name)) => {
                if changes(object, name) {
                    return Ok(refused(object, name));
                }
                if methods::exists(object, name) {
                    return Ok(Value::Method(Arc::new((object.clone(), name.clone()))));
                }
                match object {
                    Value::Namespace(_) | Value::Loop(_) | Value::Tuple(_) => self.attr(object, name),
                    _ => Ok(self.nothing(object, name)),
                }
            }
            (None, _) => Ok(Value::undefined(&format!("an item of '{}'", object.type_name()))),
        }
    }

    fn loop_attr(&mut self, id: usize, name: &str) -> Run<Value> {
        let over = || TemplateError::new("the loop is over");
        let index = self.loops.get(id).ok_or_else(over)?.index;
        if matches!(name, "last" | "nextitem") {
            self.look_ahead(id, index + 1)?;
        } else if matches!(name, "length" | "revindex" | "revindex0") {
            self.look_ahead(id, usize::MAX)?;
        }
        let state = self.loops.get(id).ok_or_else(over)?;
        let length = state.items.len();
        let int = |n: usize| Value::Int(n as i128);
        Ok(match name {
            "index" => int(index + 1),
            "index0" => int(index),
            // A loop queried while its first item is still being computed has length 0.
            "revindex" => int(length.saturating_sub(index)),
            "revindex0" => int(length.saturating_sub(index + 1)),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => int(length),
            "depth" => int(state.depth),
            "depth0" => int(state.depth - 1),
            "previtem" => match index.checked_sub(1).and_then(|i| state.items.get(i)) {
                Some(item) => item.clone(),
                None => Value::undefined("there is no previous item"),
            },
            "nextitem" => match state.items.get(index + 1) {
                Some(item) => item.clone(),
                None => Value::undefined("there is no next item"),
            },
            _ => Value::undefined(&format!("'loop' has no attribute '{name}', which")),
        })
    }

    pub(crate) fn slice(&mut self, object: &Value, bounds: &[Value; 3]) -> Run<Value> {
        if let Some(fault) = object.missing() {
            return Err(fault);
        }
        let part = |i: usize| match &bounds[i] {
            Value::None => Ok(None),
            v => v
                .as_int()
                .map(Some)
                .ok_or_else(|| TemplateError::new("slice indices must be integers or None")),
        };
        let (start, stop, step) = (part(0)?, part(1)?, part(2)?.unwrap_or(1));
        if step == 0 {
            return Err(TemplateError::new("slice step cannot be zero"));
        }
        match object {
            Value::Str(s) => {
                self.room(s.len())?;
                self.work(s.len())?;
                if step == 1 && start.unwrap_or(0) >= 0 && stop.is_none_or(|s| s >= 0) {
                    // Fast path without collecting all characters.
                    let skip = usize::try_from(start.unwrap_or(0)).unwrap_or(usize::MAX);
                    let take = stop.map_or(usize::MAX, |e| usize::try_from(e).unwrap_or(usize::MAX));
                    let text: String = s.chars().take(take).skip(skip).collect();
                    return Ok(Value::str(text));
                }
                let chars: Vec<char> = s.chars().collect();
                let text: String = picked(chars.len(), start, stop, step).map(|i| chars[i]).collect();
                Ok(Value::str(text))
            }
            Value::List(l) | Value::Tuple(l) => {
                self.room_for(l.items.len())?;
                let items = picked(l.items.len(), start, stop, step).map(|i| l.items[i].clone()).collect();
                if matches!(object, Value::List(_)) { Value::list(items) } else { Value::tuple(items) }
            }
            other => Err(TemplateError::new(format!("'{}' object cannot be sliced", other.type_name()))),
        }
    }
}

fn refused(object: &Value, name: &str) -> Value {
    let name = format!("'{name}' of '{}' object", object.type_name()).into();
    Value::Undefined(Missing { name, unsafe_access: true })
}

/// Resolves a Python index; negative values count from the end.
pub(crate) fn index(i: i128, len: usize) -> Option<usize> {
    let i = if i < 0 { i.checked_add(len as i128)? } else { i };
    usize::try_from(i).ok().filter(|&i| i < len)
}

/// Indices selected by a Python slice.
fn picked(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let n = len as i128;
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let bound = |b: Option<i128>, default: i128| match b {
        None => default,
        Some(b) if b < 0 => b.saturating_add(n).max(low),
        Some(b) => b.min(high),
    };
    let (start, stop) =
        if step > 0 { (bound(start, 0), bound(stop, n)) } else { (bound(start, n - 1), bound(stop, -1)) };
    let mut at = start;
    std::iter::from_fn(move || {
        let more = if step > 0 { at < stop } else { at > stop };
        let here = usize::try_from(at).ok().filter(|&i| more && i < len)?;
        at = at.saturating_add(step);
        Some(here)
    })
}

//! Calls: macros, global functions, methods and recursive loops.

use crate::builtins::iterate::iterate;
use crate::builtins::methods;
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::syntax::ast::Macro;
use crate::values::time;
use crate::values::value::{Key, Value};
use indexmap::IndexMap;
use std::sync::Arc;

/// Jinja2's sandbox limit (`MAX_RANGE`).
const MAX_RANGE: i128 = 100_000;

/// `self` has no blocks, so its attributes are undefined.
const GLOBALS: [&str; 8] =
    ["self", "range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"];

/// The built-in global of this name.
pub(crate) fn global(name: &str) -> Option<Value> {
    GLOBALS.into_iter().find(|g| *g == name).map(Value::Function)
}

impl Interp {
    pub(crate) fn call(&mut self, callee: &Value, given: CallArgs) -> Run<Value> {
        match callee {
            Value::Function(name) => self.call_global(name, given),
            Value::Macro(node, scope) => self.call_macro(node, *scope, given),
            Value::Method(method) => methods::call(self, &method.0, &method.1, &given),
            Value::Loop(id) => self.call_loop(*id, &given),
            Value::Cycler(id) => self.next_of_cycle(*id),
            Value::Joiner(id) => {
                let state = self.joiners.get_mut(*id);
                let (text, used) = state.ok_or_else(|| TemplateError::new("no such joiner"))?;
                let out = if *used { text.clone() } else { String::new() };
                *used = true;
                self.text(out)
            }
            other => Err(other.missing().unwrap_or_else(|| {
                TemplateError::new(format!("'{}' object is not callable", other.type_name()))
            })),
        }
    }

    fn next_of_cycle(&mut self, id: usize) -> Run<Value> {
        let Some((items, at)) = self.cyclers.get_mut(id) else {
            return Err(TemplateError::new("no such cycler"));
        };
        let value = items.get(*at).cloned().unwrap_or(Value::None);
        *at = (*at + 1) % items.len().max(1);
        Ok(value)
    }

    fn call_global(&mut self, name: &str, given: CallArgs) -> Run<Value> {
        match name {
            "self" => Err(TemplateError::new("'TemplateReference' object is not callable")),
            "range" => self.range(&given),
            "dict" => self.make_dict(&given).and_then(Value::dict),
            "namespace" => {
                let map = self.make_dict(&given)?;
                self.namespaces.push(map);
                Ok(Value::Namespace(self.namespaces.len() - 1))
            }
            "cycler" => {
                if given.positional.is_empty() {
                    return Err(TemplateError::new("at least one item has to be provided"));
                }
                self.cyclers.push((given.positional, 0));
                Ok(Value::Cycler(self.cyclers.len() - 1))
            }
            "joiner" => {
                let text = match given.get(0, "sep") {
                    Some(sep) => self.str_of(sep)?,
                    None => ", ".into(),
                };
                self.joiners.push((text, false));
                Ok(Value::Joiner(self.joiners.len() - 1))
            }
            "raise_exception" => {
                let message = given.get(0, "message").map(crate::values::repr::str_of).unwrap_or_default();
                Err(TemplateError::new(message))
            }
            _ => {
                let format = given.get(0, "format").cloned().unwrap_or(Value::None);
                let Some(format) = format.as_str() else {
                    return Err(TemplateError::new("strftime() argument 1 must be str"));
                };
                self.room(format.len().saturating_mul(8))?;
                Ok(Value::str(time::strftime(format, self.now)))
            }
        }
    }

    fn range(&mut self, given: &CallArgs) -> Run<Value> {
        let part = |i: usize| match given.positional.get(i) {
            None => Ok(None),
            Some(v) => v.as_int().map(Some).ok_or_else(|| {
                v.missing().unwrap_or_else(|| {
                    TemplateError::new(format!(
                        "'{}' object cannot be interpreted as an integer",
                        v.type_name()
                    ))
                })
            }),
        };
        let (start, stop, step) = match (part(0)?, part(1)?, part(2)?) {
            (Some(stop), None, None) => (0, stop, 1),
            (Some(start), Some(stop), step) => (start, stop, step.unwrap_or(1)),
            _ => return Err(TemplateError::new("range expected at least 1 argument, got 0")),
        };
        if step == 0 {
            return Err(TemplateError::new("range() arg 3 must not be zero"));
        }
        let span = if step > 0 { stop.checked_sub(start) } else { start.checked_sub(stop) };
        let count = span
            .map(|s| s.max(0))
            .and_then(|s| s.checked_add(step.checked_abs()? - 1))
            .map(|s| s / step.abs());
        match count {
            Some(count) if count <= MAX_RANGE => {
                self.room_for(count as usize)?;
                Value::list((0..count).map(|i| Value::Int(start + i * step)).collect())
            }
            _ => Err(TemplateError::new(format!("range too big, at most {MAX_RANGE}"))),
        }
    }

    /// The result of `dict(…)` for a mapping or pairs, and keyword arguments.
    fn make_dict(&mut self, given: &CallArgs) -> Run<IndexMap<Key, Value>> {
        let mut map = IndexMap::new();
        match given.positional.first() {
            None => {}
            Some(Value::Dict(d)) => map.clone_from(&d.map),
            Some(pairs) => {
                for pair in iterate(self, pairs)? {
                    let mut pair = iterate(self, &pair)?.into_iter();
                    let (Some(key), Some(value), None) = (pair.next(), pair.next(), pair.next()) else {
                        return Err(TemplateError::new("dictionary update sequence element is no pair"));
                    };
                    map.insert(key.key()?, value);
                }
            }
        }
        for (name, value) in &given.named {
            map.insert(Key(Value::Str(name.clone())), value.clone());
        }
        self.room_for(map.len() + 4)?;
        Ok(map)
    }

    fn call_macro(&mut self, node: &Arc<Macro>, defined_in: usize, given: CallArgs) -> Run<Value> {
        let scope = self.open_scope(defined_in)?;
        let CallArgs { positional, mut named } = given;
        let mut rest = positional.into_iter();
        let mut defaults = Vec::new();
        for (name, default) in &node.params {
            let by_name = named.iter().position(|(n, _)| n == name).map(|i| named.remove(i).1);
            let value = match (rest.next(), by_name, default) {
                (Some(_), Some(_), _) => {
                    let why = format!("macro '{}' got multiple values for argument '{name}'", node.name);
                    return Err(TemplateError::new(why));
                }
                (Some(value), None, _) | (None, Some(value), _) => value,
                (None, None, default) => {
                    defaults.extend(default.as_ref().map(|d| (name, d)));
                    Value::undefined(&format!("parameter '{name}' was not provided and"))
                }
            };
            self.assign_name(scope, name.clone(), value)?;
        }
        // Defaults see the parameters (undefined if not given), not outer variables of the same
        // names.
        for (name, default) in defaults {
            let value = self.eval(default, scope)?;
            self.assign_name(scope, name.clone(), value)?;
        }
        if let Some(at) = named.iter().position(|(n, _)| &**n == "caller") {
            let (name, caller) = named.remove(at);
            self.assign_name(scope, name, caller)?;
        }
        let extra: Vec<Value> = rest.collect();
        if node.takes_varargs {
            let extra = Value::tuple(extra)?;
            self.assign_name(scope, "varargs".into(), extra)?;
        } else if !extra.is_empty() {
            let why = format!("macro '{}' takes not more than {} argument(s)", node.name, node.params.len());
            return Err(TemplateError::new(why));
        }
        if node.takes_kwargs {
            let map = named.into_iter().map(|(n, v)| (Key(Value::Str(n)), v)).collect();
            let kwargs = Value::dict(map)?;
            self.assign_name(scope, "kwargs".into(), kwargs)?;
        } else if let Some((name, _)) = named.first() {
            return Err(TemplateError::new(format!(
                "macro '{}' takes no keyword argument '{name}'",
                node.name
            )));
        }
        let out = self.run_body(&node.body, scope)?;
        self.close_scope(scope);
        self.text(out)
    }

    fn call_loop(&mut self, id: usize, given: &CallArgs) -> Run<Value> {
        let Some(state) = self.loops.get(id) else { return Err(TemplateError::new("the loop is over")) };
        let (node, scope, depth) = (state.node.clone(), state.scope, state.depth + 1);
        if !node.recursive {
            return Err(TemplateError::new("the loop must have the 'recursive' marker to be called"));
        }
        let over = given.positional.first().cloned().unwrap_or(Value::None);
        let mut out = String::new();
        self.finishing(|i| i.run_loop(&node, over, scope, depth, &mut out))?;
        self.written -= out.len();
        self.text(out)
    }
}

//! Methods of strings, lists, mappings, loops and cyclers.

use crate::builtins::{signatures, text_methods};
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::values::value::{Value, View};

const STR: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const LIST: [&str; 3] = ["copy", "count", "index"];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];

/// Whether the value's type has this method.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) | Value::Safe(_) => STR.contains(&name),
        Value::List(_) => LIST.contains(&name),
        Value::Tuple(_) => matches!(name, "count" | "index"),
        Value::Dict(_) => DICT.contains(&name),
        Value::Loop(_) => matches!(name, "cycle" | "changed"),
        Value::Cycler(_) => matches!(name, "next" | "reset"),
        _ => false,
    }
}

pub(crate) fn call(interp: &mut Interp, object: &Value, name: &str, given: &CallArgs) -> Run<Value> {
    match object {
        Value::Str(s) => text_methods::call(interp, s, name, given),
        Value::Safe(s) => Ok(match text_methods::call(interp, s, name, given)? {
            Value::Str(s) => Value::Safe(s),
            other => other,
        }),
        Value::List(l) | Value::Tuple(l) => {
            interp.walks(object)?;
            let wanted = || {
                given
                    .get(0, "value")
                    .ok_or_else(|| TemplateError::new(format!("{name}() takes one argument")))
            };
            match name {
                "copy" => signatures::unnamed(name, 0, given).map(|()| object.clone()),
                "count" => {
                    signatures::unnamed(name, 1, given)?;
                    let wanted = wanted()?;
                    Ok(Value::Int(l.items.iter().filter(|v| v.equals(wanted)).count() as i128))
                }
                _ => {
                    signatures::unnamed(name, 3, given)?;
                    let (wanted, len) = (wanted()?, l.items.len());
                    let place = |i: usize, default: usize| match given.positional.get(i) {
                        None => Ok(default),
                        Some(v) => v
                            .as_int()
                            .map(|n| if n < 0 { n.saturating_add(len as i128).max(0) } else { n })
                            .map(|n| usize::try_from(n).unwrap_or(len))
                            .ok_or_else(|| TemplateError::new("slice indices must be integers")),
                    };
                    let (start, stop) = (place(1, 0)?, place(2, len)?);
                    let mut within = l.items.iter().enumerate().take(stop).skip(start);
                    let at = within.find(|(_, v)| v.equals(wanted));
                    at.map(|(i, _)| Value::Int(i as i128))
                        .ok_or_else(|| TemplateError::new("the value is not in the list"))
                }
            }
        }
        Value::Dict(d) => {
            signatures::unnamed(name, if name == "get" { 2 } else { 0 }, given)?;
            let all = |interp: &mut Interp| interp.room_for(d.map.len());
            match name {
                "copy" => Ok(object.clone()),
                "get" => {
                    let key = given
                        .positional
                        .first()
                        .ok_or_else(|| TemplateError::new("get expected at least 1 argument"))?;
                    let found = d.map.get(&key.clone().key()?).cloned();
                    Ok(found.or_else(|| given.positional.get(1).cloned()).unwrap_or(Value::None))
                }
                "keys" => {
                    all(interp)?;
                    Value::view(d.map.keys().map(|k| k.0.clone()).collect(), View::Keys)
                }
                "values" => {
                    all(interp)?;
                    Value::view(d.map.values().cloned().collect(), View::Values)
                }
                _ => {
                    all(interp)?;
                    Value::view(pairs(object)?, View::Items)
                }
            }
        }
        Value::Loop(id) => loop_method(interp, *id, name, given),
        Value::Cycler(id) => {
            if name == "next" {
                return interp.call(object, CallArgs::default());
            }
            if let Some(state) = interp.cyclers.get_mut(*id) {
                state.1 = 0;
            }
            Ok(Value::None)
        }
        _ => Err(TemplateError::new(format!("no method {name}"))),
    }
}

/// Key-value pairs of a mapping, as tuples.
pub(crate) fn pairs(mapping: &Value) -> Run<Vec<Value>> {
    match mapping {
        Value::Dict(d) => d.map.iter().map(|(k, v)| Value::tuple(vec![k.0.clone(), v.clone()])).collect(),
        _ => Err(TemplateError::new("Can only get item pairs from a mapping.")),
    }
}

fn loop_method(interp: &mut Interp, id: usize, name: &str, given: &CallArgs) -> Run<Value> {
    let Some(state) = interp.loops.get_mut(id) else { return Err(TemplateError::new("the loop is over")) };
    let args = &given.positional;
    if name == "cycle" {
        let at = state.index.checked_rem(args.len());
        let value = at.and_then(|i| args.get(i)).cloned();
        return value.ok_or_else(|| TemplateError::new("no items for cycling given"));
    }
    let same = |old: &Vec<Value>| old.len() == args.len() && old.iter().zip(args).all(|(a, b)| a.equals(b));
    let changed = !state.changed.as_ref().is_some_and(same);
    if changed {
        state.changed = Some(args.clone());
    }
    Ok(Value::Bool(changed))
}

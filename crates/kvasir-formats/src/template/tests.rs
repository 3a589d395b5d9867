//! Jinja's tests: the operand of `is`. Not unit tests.

use super::{
    ast::{Binary, Compare},
    fault::{Fault, Run},
    filters, ops,
    run::{Given, Interp},
    value::Value,
};
use std::sync::Arc;

const NAMES: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

pub(super) fn known(name: &str) -> bool {
    NAMES.contains(&name)
}

pub(super) fn apply(interp: &mut Interp, name: &str, value: &Value, given: &Given) -> Run<bool> {
    if !known(name) {
        return Err(Fault::new(format!("no test named {name:?}")));
    }
    let argument =
        || given.positional.first().ok_or_else(|| Fault::new(format!("test {name} needs an argument")));
    let leaves = |interp: &mut Interp, by: &Value, rest: i128| {
        ops::binary(interp, Binary::Mod, value, by).map(|left| left.equals(&Value::Int(rest)))
    };
    Ok(match name {
        "odd" => leaves(interp, &Value::Int(2), 1)?,
        "even" => leaves(interp, &Value::Int(2), 0)?,
        "divisibleby" => leaves(interp, argument()?, 0)?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" => value.as_str().is_some_and(filters::known),
        "test" => value.as_str().is_some_and(known),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "lower" => cased(&interp.str_of(value)?, char::is_lowercase),
        "upper" => cased(&interp.str_of(value)?, char::is_uppercase),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
        "sequence" => matches!(
            value,
            Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Undefined(_)
        ),
        "iterable" => matches!(
            value,
            Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Undefined(_)
                | Value::View(..)
        ),
        "callable" => matches!(
            value,
            Value::Macro(..)
                | Value::Function(_)
                | Value::Method(_)
                | Value::Loop(_)
                | Value::Cycler(_)
                | Value::Joiner(_)
        ),
        "sameas" => {
            interp.walks(value)?;
            same(value, argument()?)
        }
        "escaped" => false,
        "in" => ops::contains(interp, argument()?, value)?,
        "==" | "eq" | "equalto" => ops::compare(interp, Compare::Eq, value, argument()?)?,
        "!=" | "ne" => ops::compare(interp, Compare::Ne, value, argument()?)?,
        ">" | "gt" | "greaterthan" => ops::compare(interp, Compare::Gt, value, argument()?)?,
        ">=" | "ge" => ops::compare(interp, Compare::Ge, value, argument()?)?,
        "<" | "lt" | "lessthan" => ops::compare(interp, Compare::Lt, value, argument()?)?,
        _ => ops::compare(interp, Compare::Le, value, argument()?)?,
    })
}

/// Python's `str.islower` and `str.isupper`: at least one cased character, and all of the wanted
/// case.
pub(super) fn cased(text: &str, wanted: fn(char) -> bool) -> bool {
    let mut cased = text.chars().filter(|c| c.is_lowercase() || c.is_uppercase()).peekable();
    cased.peek().is_some() && cased.all(wanted)
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
        (Value::Int(_), Value::Float(_)) | (Value::Float(_), Value::Int(_)) => false,
        (Value::List(a), Value::List(b)) => Arc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Arc::ptr_eq(a, b),
        _ => a.equals(b),
    }
}

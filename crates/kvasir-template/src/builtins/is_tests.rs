//! Jinja's tests: the operand of `is`. Not unit tests.

use crate::builtins::operators;
use crate::builtins::text_methods::cased;
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::syntax::ast::{Binary, Compare};
use crate::syntax::names::{is_filter, is_test};
use crate::values::value::Value;
use std::sync::Arc;

pub(crate) fn apply(interp: &mut Interp, name: &str, value: &Value, given: &CallArgs) -> Run<bool> {
    if !is_test(name) {
        return Err(TemplateError::new(format!("no test named {name:?}")));
    }
    let argument = || {
        given.positional.first().ok_or_else(|| TemplateError::new(format!("test {name} needs an argument")))
    };
    let leaves = |interp: &mut Interp, by: &Value, rest: i128| {
        operators::binary(interp, Binary::Mod, value, by).map(|left| left.equals(&Value::Int(rest)))
    };
    Ok(match name {
        "odd" => leaves(interp, &Value::Int(2), 1)?,
        "even" => leaves(interp, &Value::Int(2), 0)?,
        "divisibleby" => leaves(interp, argument()?, 0)?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" => value.as_str().is_some_and(is_filter),
        "test" => value.as_str().is_some_and(is_test),
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
        "in" => operators::contains(interp, argument()?, value)?,
        "==" | "eq" | "equalto" => operators::compare(interp, Compare::Eq, value, argument()?)?,
        "!=" | "ne" => operators::compare(interp, Compare::Ne, value, argument()?)?,
        ">" | "gt" | "greaterthan" => operators::compare(interp, Compare::Gt, value, argument()?)?,
        ">=" | "ge" => operators::compare(interp, Compare::Ge, value, argument()?)?,
        "<" | "lt" | "lessthan" => operators::compare(interp, Compare::Lt, value, argument()?)?,
        _ => operators::compare(interp, Compare::Le, value, argument()?)?,
    })
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

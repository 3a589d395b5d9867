//! Python's operators: arithmetic with overflow checks, comparison, containment and `%` formatting.

use crate::builtins::format;
use crate::builtins::iterate::iterate;
use crate::error::{Run, TemplateError};
use crate::state::Interp;
use crate::syntax::ast::{Binary, Compare};
use crate::values::repr::{escape_html, str_of};
use crate::values::value::Value;
use std::cmp::Ordering;

fn unsupported(op: &str, a: &Value, b: &Value) -> TemplateError {
    a.missing().or_else(|| b.missing()).unwrap_or_else(|| {
        let (a, b) = (a.type_name(), b.type_name());
        TemplateError::new(format!("unsupported operand type(s) for {op}: '{a}' and '{b}'"))
    })
}

fn overflow() -> TemplateError {
    TemplateError::new("an integer is too large")
}

pub(crate) fn negate(value: &Value) -> Run<Value> {
    match (value.as_int(), value) {
        (Some(n), _) => n.checked_neg().map(Value::Int).ok_or_else(overflow),
        (None, Value::Float(f)) => Ok(Value::Float(-f)),
        _ => Err(value.missing().unwrap_or_else(|| bad_unary("-", value))),
    }
}

pub(crate) fn plus(value: Value) -> Run<Value> {
    match (value.as_int(), &value) {
        (Some(n), _) => Ok(Value::Int(n)),
        (None, Value::Float(_)) => Ok(value),
        _ => Err(value.missing().unwrap_or_else(|| bad_unary("+", &value))),
    }
}

fn bad_unary(op: &str, value: &Value) -> TemplateError {
    TemplateError::new(format!("bad operand type for unary {op}: '{}'", value.type_name()))
}

pub(crate) fn binary(interp: &mut Interp, op: Binary, a: &Value, b: &Value) -> Run<Value> {
    match op {
        Binary::Add if matches!((a, b), (Value::Safe(_), _) | (_, Value::Safe(_))) => add_safe(interp, a, b),
        Binary::Add => add(interp, a, b),
        Binary::Mul if matches!((a, b), (Value::Safe(_), _) | (_, Value::Safe(_))) => {
            multiply(interp, &a.clone().plain(), &b.clone().plain())
        }
        Binary::Mul => multiply(interp, a, b),
        Binary::Mod if matches!(a, Value::Str(_) | Value::Safe(_)) => {
            format::percent(interp, a.as_str().unwrap_or_default(), b)
        }
        _ => arithmetic(op, a, b),
    }
}

fn add(interp: &mut Interp, a: &Value, b: &Value) -> Run<Value> {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            interp.room(a.len().saturating_add(b.len()))?;
            Ok(Value::str([&**a, &**b].concat()))
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            interp.room_for(x.items.len().saturating_add(y.items.len()))?;
            let items = x.items.iter().chain(&y.items).cloned().collect();
            if matches!(a, Value::List(_)) { Value::list(items) } else { Value::tuple(items) }
        }
        (Value::Str(_), _) if !b.is_undefined() => {
            Err(TemplateError::new(format!("can only concatenate str (not \"{}\") to str", b.type_name())))
        }
        _ => match (a.as_int(), b.as_int()) {
            (Some(x), Some(y)) => x.checked_add(y).map(Value::Int).ok_or_else(overflow),
            _ => floats("+", a, b, |x, y| x + y),
        },
    }
}

/// Concatenation with a safe string escapes the plain operand.
fn add_safe(interp: &mut Interp, a: &Value, b: &Value) -> Run<Value> {
    let (Some(x), Some(y)) = (a.as_str(), b.as_str()) else {
        return add(interp, &a.clone().plain(), &b.clone().plain());
    };
    interp.room(x.len().max(y.len()).saturating_mul(5))?;
    let safe = |v: &Value| match v {
        Value::Str(s) => escape_html(s),
        other => str_of(other),
    };
    let (left, right) = (safe(a), safe(b));
    interp.room(left.len().saturating_add(right.len()))?;
    Ok(Value::Safe((left + &right).into()))
}

fn floats(op: &str, a: &Value, b: &Value, f: impl Fn(f64, f64) -> f64) -> Run<Value> {
    match a.number().zip(b.number()) {
        Some((x, y)) => Ok(Value::Float(f(x, y))),
        None => Err(unsupported(op, a, b)),
    }
}

fn multiply(interp: &mut Interp, a: &Value, b: &Value) -> Run<Value> {
    let (sequence, count) = match (a, b) {
        (Value::Str(_) | Value::List(_) | Value::Tuple(_), n) if n.as_int().is_some() => (a, n.as_int()),
        (n, Value::Str(_) | Value::List(_) | Value::Tuple(_)) if n.as_int().is_some() => (b, n.as_int()),
        _ => match (a.as_int(), b.as_int()) {
            (Some(x), Some(y)) => return x.checked_mul(y).map(Value::Int).ok_or_else(overflow),
            _ => return floats("*", a, b, |x, y| x * y),
        },
    };
    let count = usize::try_from(count.unwrap_or(0).max(0)).unwrap_or(usize::MAX);
    match sequence {
        Value::Str(s) => {
            interp.room(s.len().saturating_mul(count))?;
            Ok(Value::str(s.repeat(if s.is_empty() { 0 } else { count })))
        }
        Value::List(l) | Value::Tuple(l) => {
            interp.room_for(l.items.len().saturating_mul(count))?;
            let count = if l.items.is_empty() { 0 } else { count };
            let items = std::iter::repeat_n(&l.items, count).flatten().cloned().collect();
            if matches!(sequence, Value::List(_)) { Value::list(items) } else { Value::tuple(items) }
        }
        _ => Err(unsupported("*", a, b)),
    }
}

fn arithmetic(op: Binary, a: &Value, b: &Value) -> Run<Value> {
    let zero = || TemplateError::new("division by zero");
    let name = match op {
        Binary::Sub => "-",
        Binary::Div => "/",
        Binary::FloorDiv => "//",
        Binary::Mod => "%",
        _ => "** or pow()",
    };
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        match op {
            Binary::Sub => return x.checked_sub(y).map(Value::Int).ok_or_else(overflow),
            Binary::FloorDiv | Binary::Mod if y == 0 => return Err(zero()),
            Binary::FloorDiv => {
                let q = x.checked_div(y).ok_or_else(overflow)?;
                return Ok(Value::Int(if x % y != 0 && (x < 0) != (y < 0) { q - 1 } else { q }));
            }
            Binary::Mod => {
                let r = x.checked_rem(y).ok_or_else(overflow)?;
                return Ok(Value::Int(if r != 0 && (r < 0) != (y < 0) { r + y } else { r }));
            }
            Binary::Pow if y >= 0 => {
                let exponent = u32::try_from(y).map_err(|_| overflow())?;
                return x.checked_pow(exponent).map(Value::Int).ok_or_else(overflow);
            }
            _ => {}
        }
    }
    let Some((x, y)) = a.number().zip(b.number()) else { return Err(unsupported(name, a, b)) };
    if y == 0.0 && matches!(op, Binary::Div | Binary::FloorDiv | Binary::Mod) {
        return Err(zero());
    }
    Ok(Value::Float(match op {
        Binary::Sub => x - y,
        Binary::Div => x / y,
        Binary::FloorDiv => (x / y).floor(),
        Binary::Mod => x - y * (x / y).floor(),
        _ => x.powf(y),
    }))
}

pub(crate) fn compare(interp: &mut Interp, op: Compare, a: &Value, b: &Value) -> Run<bool> {
    let ordered = |wanted: fn(Ordering) -> bool| {
        if let Some(fault) = a.missing().or_else(|| b.missing()) {
            return Err(fault);
        }
        if a.number().is_some_and(f64::is_nan) || b.number().is_some_and(f64::is_nan) {
            return Ok(false);
        }
        a.order(b).map(wanted)
    };
    interp.work(a.size().min(b.size()) / 16)?;
    match op {
        Compare::Eq => Ok(a.equals(b)),
        Compare::Ne => Ok(!a.equals(b)),
        Compare::Lt => ordered(Ordering::is_lt),
        Compare::Le => ordered(Ordering::is_le),
        Compare::Gt => ordered(Ordering::is_gt),
        Compare::Ge => ordered(Ordering::is_ge),
        Compare::In => contains(interp, b, a),
        Compare::NotIn => contains(interp, b, a).map(|found| !found),
    }
}

pub(crate) fn contains(interp: &mut Interp, container: &Value, item: &Value) -> Run<bool> {
    interp.walks(container)?;
    match container {
        Value::Str(s) => match item.as_str() {
            Some(part) => Ok(s.contains(part)),
            None => {
                let why = format!("'in <string>' requires string as left operand, not {}", item.type_name());
                Err(TemplateError::new(why))
            }
        },
        Value::Dict(d) => Ok(d.map.contains_key(&item.clone().key()?)),
        Value::List(l) | Value::Tuple(l) | Value::View(l, _) => Ok(l.items.iter().any(|v| v.equals(item))),
        other => Ok(iterate(interp, other)
            .map_err(|_| {
                TemplateError::new(format!("argument of type '{}' is not iterable", other.type_name()))
            })?
            .iter()
            .any(|v| v.equals(item))),
    }
}

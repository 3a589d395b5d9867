//! Numeric filters: `abs`, `int`, `float`, `round`, `sum`, `filesizeformat`.

use crate::builtins::iterate::iterate;
use crate::builtins::{operators, sequences};
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::syntax::ast::Binary;
use crate::syntax::lexer::python_space;
use crate::values::value::Value;

/// Applies a numeric filter.
pub(crate) fn apply(interp: &mut Interp, name: &str, value: &Value, given: &CallArgs) -> Run<Value> {
    let wrong = || {
        value.missing().unwrap_or_else(|| {
            TemplateError::new(format!("{name} takes a number, not '{}'", value.type_name()))
        })
    };
    match name {
        "abs" => match (value.as_int(), value.number()) {
            (Some(n), _) => n.checked_abs().map(Value::Int).ok_or_else(wrong),
            (None, Some(f)) => Ok(Value::Float(f.abs())),
            _ => Err(wrong()),
        },
        "int" => {
            if let Some(fault) = value.missing() {
                return Err(fault);
            }
            let base = given
                .get(1, "base")
                .and_then(Value::as_int)
                .and_then(|b| u32::try_from(b).ok())
                .unwrap_or(10);
            let parsed = match value {
                Value::Str(s) => parse_int(s, base).or_else(|| parse_float(s).and_then(truncated)),
                Value::Float(f) => truncated(*f),
                other => other.as_int(),
            };
            Ok(parsed.map_or_else(|| given.get(0, "default").cloned().unwrap_or(Value::Int(0)), Value::Int))
        }
        "float" => {
            if let Some(fault) = value.missing() {
                return Err(fault);
            }
            let parsed = match value {
                Value::Str(s) => parse_float(s),
                other => other.number(),
            };
            Ok(parsed
                .map_or_else(|| given.get(0, "default").cloned().unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => {
            let precision =
                given.get(0, "precision").and_then(Value::as_int).unwrap_or(0).clamp(-30, 30) as i32;
            let method = given.get(1, "method").and_then(Value::as_str).unwrap_or("common").to_owned();
            let f = value.number().ok_or_else(wrong)?;
            if let (Some(n), "common") = (value.as_int(), method.as_str()) {
                return Ok(Value::Int(if precision < 0 {
                    round_int(n, precision.unsigned_abs())
                } else {
                    n
                }));
            }
            match method.as_str() {
                "common" if precision >= 0 => {
                    Ok(Value::Float(format!("{f:.*}", precision as usize).parse().unwrap_or(f)))
                }
                "common" => {
                    Ok(Value::Float((f / 10f64.powi(-precision)).round_ties_even() * 10f64.powi(-precision)))
                }
                "ceil" => Ok(Value::Float((f * 10f64.powi(precision)).ceil() / 10f64.powi(precision))),
                "floor" => Ok(Value::Float((f * 10f64.powi(precision)).floor() / 10f64.powi(precision))),
                _ => Err(TemplateError::new("method must be common, ceil or floor")),
            }
        }
        "sum" => {
            let mut total = given.get(1, "start").cloned().unwrap_or(Value::Int(0));
            for item in iterate(interp, value)? {
                let item = match given.get(0, "attribute") {
                    Some(path) if !matches!(path, Value::None) => sequences::walk(interp, &item, path)?,
                    _ => item,
                };
                total = operators::binary(interp, Binary::Add, &total, &item)?;
            }
            Ok(total)
        }
        _ => {
            let binary = given.get(0, "binary").is_some_and(Value::truth);
            let bytes = value.number().or_else(|| value.as_str().and_then(parse_float)).ok_or_else(wrong)?;
            interp.text(file_size(bytes, binary))
        }
    }
}

/// Rounds to a multiple of 10^`power`, half to even.
fn round_int(n: i128, power: u32) -> i128 {
    let unit = 10i128.pow(power);
    let (below, over) = (n.div_euclid(unit), n.rem_euclid(unit));
    let up = over * 2 > unit || (over * 2 == unit && below % 2 != 0);
    (below + i128::from(up)).saturating_mul(unit)
}

fn truncated(f: f64) -> Option<i128> {
    (f.is_finite() && f.abs() < 1e38).then_some(f.trunc() as i128)
}

fn parse_int(s: &str, base: u32) -> Option<i128> {
    let s = s.trim_matches(python_space);
    let valid = !s.starts_with('_') && !s.ends_with('_') && !s.contains("__");
    let (sign, digits) = match s.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", s.strip_prefix('+').unwrap_or(s)),
    };
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let lower = digits.to_ascii_lowercase();
    let digits = if prefix.is_empty() { &lower } else { lower.strip_prefix(prefix).unwrap_or(&lower) };
    let digits = digits.replace('_', "");
    if !valid || !(2..=36).contains(&base) || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{digits}"), base).ok()
}

fn parse_float(s: &str) -> Option<f64> {
    let s = s.trim_matches(python_space);
    if s.starts_with('_') || s.ends_with('_') || s.contains("__") {
        None
    } else {
        s.replace('_', "").parse().ok()
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let base = if binary { 1024.0 } else { 1000.0 };
    let units = if binary { ["KiB", "MiB", "GiB", "TiB", "PiB"] } else { ["kB", "MB", "GB", "TB", "PB"] };
    if bytes == 1.0 {
        return "1 Byte".into();
    }
    if bytes < base {
        return format!("{} Bytes", bytes as i64);
    }
    let mut scaled = bytes / base;
    for (i, unit) in units.iter().enumerate() {
        if scaled < base || i + 1 == units.len() {
            return format!("{scaled:.1} {unit}");
        }
        scaled /= base;
    }
    String::new()
}

//! Jinja's built-in filters, and Transformers' `tojson`.
//!
//! `random` is refused: rendering must be reproducible.

use crate::builtins::iterate::iterate;
use crate::builtins::{format, methods, numbers, sequences, signatures, text_methods};
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::syntax::lexer::python_space;
use crate::syntax::names::is_filter;
use crate::values::json;
use crate::values::json::Style;
use crate::values::repr::{escape_html, str_of, write_repr};
use crate::values::value::{Key, Value, View};
use std::sync::Arc;

const MAX_INDENT: i128 = 256;

impl Interp {
    /// Applies the named filter.
    pub(crate) fn apply_filter(&mut self, name: &str, value: Value, given: &CallArgs) -> Run<Value> {
        apply(self, name, value, given)
    }
}

fn apply(interp: &mut Interp, name: &str, value: Value, given: &CallArgs) -> Run<Value> {
    signatures::filter(name, given)?;
    if let Value::Safe(s) = value {
        return on_safe(interp, name, s, given);
    }
    match name {
        "default" | "d" => {
            let use_default =
                value.is_undefined() || (given.get(1, "boolean").is_some_and(Value::truth) && !value.truth());
            if !use_default {
                return Ok(value);
            }
            Ok(given.get(0, "default_value").cloned().unwrap_or_else(|| Value::str("")))
        }
        "safe" => Ok(Value::Safe(interp.str_of(&value)?.into())),
        "string" => {
            Ok(if matches!(value, Value::Str(_)) { value } else { Value::Str(interp.str_of(&value)?.into()) })
        }
        "escape" | "e" | "forceescape" => {
            let text = interp.str_of(&value)?;
            interp.room(text.len().saturating_mul(5))?;
            Ok(Value::Safe(escape_html(&text).into()))
        }
        "upper" | "lower" | "title" | "capitalize" | "trim" | "replace" | "indent" | "center"
        | "truncate" | "wordcount" | "striptags" | "urlencode" => text(interp, name, &value, given),
        "length" | "count" => length(interp, &value),
        "list" => iterate(interp, &value).and_then(Value::list),
        "items" => match &value {
            Value::Undefined(_) => Value::generator(Vec::new()),
            other => Value::generator(methods::pairs(other)?),
        },
        "tojson" => tojson(interp, &value, given),
        "join" => {
            let between = given.get(0, "d").map_or(Ok(String::new()), |d| interp.str_of(d))?;
            let mut parts = iterate(interp, &value)?;
            if let Some(path) = given.get(1, "attribute") {
                parts = parts.iter().map(|p| sequences::walk(interp, p, path)).collect::<Run<_>>()?;
            }
            text_methods::join(interp, &parts, &between)
        }
        "format" => {
            let values = if given.named.is_empty() {
                Value::tuple(given.positional.clone())?
            } else {
                Value::dict(
                    given.named.iter().map(|(k, v)| (Key(Value::Str(k.clone())), v.clone())).collect(),
                )?
            };
            let text = interp.str_of(&value)?;
            format::percent(interp, &text, &values)
        }
        "attr" => match given.positional.first() {
            Some(Value::Str(name)) if matches!(value, Value::Dict(_)) && !methods::exists(&value, name) => {
                Ok(Value::undefined(&format!("attribute '{name}'")))
            }
            Some(Value::Str(name)) => interp.attr(&value, name),
            _ => Err(TemplateError::new("attr takes a name")),
        },
        "pprint" => {
            let mut out = String::new();
            write_repr(&value, &mut out);
            interp.text(out)
        }
        "abs" | "int" | "float" | "round" | "sum" | "filesizeformat" => {
            numbers::apply(interp, name, &value, given)
        }
        "xmlattr" => xmlattr(interp, &value, given),
        "random" => Err(TemplateError::new("random: a rendering must be repeatable")),
        _ if is_filter(name) => sequences::apply(interp, name, &value, given),
        _ => Err(TemplateError::new(format!("no filter named {name:?}"))),
    }
}

/// Applies a filter to a safe string. Some filters preserve the safe mark, others return a plain
/// string.
fn on_safe(interp: &mut Interp, name: &str, text: Arc<str>, given: &CallArgs) -> Run<Value> {
    if matches!(name, "escape" | "e") {
        return Ok(Value::Safe(text)); // already escaped
    }
    let out = apply(interp, name, Value::Str(text), given)?;
    let keeps =
        ["trim", "upper", "lower", "title", "capitalize", "indent", "format", "default", "d", "string"];
    Ok(match out {
        Value::Str(s) if keeps.contains(&name) => Value::Safe(s),
        other => other,
    })
}

fn length(interp: &mut Interp, value: &Value) -> Run<Value> {
    let n = match value {
        Value::Str(s) => {
            interp.work(s.len() / 16)?;
            s.chars().count()
        }
        Value::List(l) | Value::Tuple(l) => l.items.len(),
        Value::View(l, view) if *view != View::Generator => l.items.len(),
        Value::Dict(d) => d.map.len(),
        Value::Undefined(m) if !m.unsafe_access => 0,
        other => {
            return Err(TemplateError::new(format!("object of type '{}' has no len()", other.type_name())));
        }
    };
    Ok(Value::Int(n as i128))
}

fn tojson(interp: &mut Interp, value: &Value, given: &CallArgs) -> Run<Value> {
    let indent = match given.get(1, "indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(s)) => Some(s.to_string()),
        Some(other) => {
            let n =
                other.as_int().ok_or_else(|| TemplateError::new("indent must be an integer or a string"))?;
            if n > MAX_INDENT {
                return Err(TemplateError::new(format!("an indent of more than {MAX_INDENT}")));
            }
            Some(" ".repeat(n.max(0) as usize))
        }
    };
    let (mut item, mut key) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(pair) = given.get(2, "separators").filter(|p| !matches!(p, Value::None)) {
        let pair = iterate(interp, pair)?;
        let [Value::Str(a), Value::Str(b)] = pair.as_slice() else {
            return Err(TemplateError::new("separators must be a pair of strings"));
        };
        (item, key) = (a.to_string(), b.to_string());
    }
    let style = Style {
        ascii: given.get(0, "ensure_ascii").is_some_and(Value::truth),
        indent,
        item,
        key,
        sort: given.get(3, "sort_keys").is_some_and(Value::truth),
        longest: interp.value_bytes(),
    };
    let text = json::dumps(value, &style)?;
    interp.work(text.len())?;
    interp.text(text)
}

fn text(interp: &mut Interp, name: &str, value: &Value, given: &CallArgs) -> Run<Value> {
    // `indent` and `truncate` require a string; the others convert their input.
    if value.as_str().is_none() && name == "indent" {
        let why = || TemplateError::new(format!("indent takes a string, not '{}'", value.type_name()));
        return Err(value.missing().unwrap_or_else(why));
    }
    if value.as_str().is_none() && name == "truncate" {
        return truncate_other(interp, value, given);
    }
    let s = interp.str_of(value)?;
    interp.work(s.len())?;
    match name {
        "upper" => interp.text(s.to_uppercase()),
        "lower" => interp.text(s.to_lowercase()),
        "capitalize" => interp.text(text_methods::capitalize(&s)),
        "title" => interp.text(title(&s)),
        "trim" => {
            let chars = match given.get(0, "chars") {
                None | Some(Value::None) => None,
                Some(chars) => Some(interp.str_of(chars)?),
            };
            let strip = |c: char| chars.as_ref().map_or_else(|| python_space(c), |set| set.contains(c));
            interp.text(s.trim_matches(strip))
        }
        "replace" => {
            let argument = |i: usize, name: &str| given.get(i, name).map(str_of);
            let (Some(old), Some(new)) = (argument(0, "old"), argument(1, "new")) else {
                return Err(TemplateError::new("replace takes what to replace and what with"));
            };
            let count = given.get(2, "count").and_then(Value::as_int).unwrap_or(-1);
            text_methods::replace(interp, &s, &old, &new, count)
        }
        "indent" => indent(interp, &s, given),
        "center" => {
            let given = CallArgs {
                positional: vec![given.get(0, "width").cloned().unwrap_or(Value::Int(80))],
                ..CallArgs::default()
            };
            methods::call(interp, &Value::str(s), "center", &given)
        }
        "truncate" => truncate(interp, &s, given),
        "wordcount" => {
            let words = s.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty());
            Ok(Value::Int(words.count() as i128))
        }
        "striptags" => {
            let mut out = String::new();
            let mut rest = s.as_str();
            while let Some(open) = rest.find('<') {
                let Some(close) = rest[open..].find('>') else { break };
                out.push_str(&rest[..open]);
                rest = &rest[open + close + 1..];
            }
            out.push_str(rest);
            interp.text(out.split(python_space).filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" "))
        }
        _ => {
            interp.room(s.len().saturating_mul(3))?;
            let mut out = String::new();
            for b in s.bytes() {
                if b.is_ascii_alphanumeric() || b"_.-~/".contains(&b) {
                    out.push(b.into());
                } else {
                    out.push_str(&format!("%{b:02X}"));
                }
            }
            Ok(Value::str(out))
        }
    }
}

/// Jinja's title case: words start after white space, hyphens and opening brackets.
fn title(s: &str) -> String {
    let mut out = String::new();
    let mut start = true;
    for c in s.chars() {
        if start {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        start = python_space(c) || "-({[<".contains(c);
    }
    out
}

fn indent(interp: &mut Interp, s: &str, given: &CallArgs) -> Run<Value> {
    let by = match given.get(0, "width") {
        None => "    ".to_owned(),
        Some(Value::Str(s)) => s.to_string(),
        Some(other) => {
            let n = other.as_int().ok_or_else(|| TemplateError::new("indent takes a width"))?;
            if n > MAX_INDENT {
                return Err(TemplateError::new(format!("an indent of more than {MAX_INDENT}")));
            }
            " ".repeat(n.max(0) as usize)
        }
    };
    let (first, blank) =
        (given.get(1, "first").is_some_and(Value::truth), given.get(2, "blank").is_some_and(Value::truth));
    let text = format!("{s}\n"); // preserves a final empty line
    let lines = text_methods::split_lines(&text, false);
    interp.room(text.len().saturating_add(lines.len().saturating_mul(by.len())))?;
    let mut out = if first { by.clone() } else { String::new() };
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&by);
            }
        }
        out.push_str(line);
    }
    Ok(Value::str(out))
}

/// Length limit and leeway of `truncate`.
fn cut_length(given: &CallArgs) -> (usize, usize) {
    let size = |i: usize, name: &str, default: usize| {
        given.get(i, name).and_then(Value::as_int).map_or(default, |n| usize::try_from(n).unwrap_or(0))
    };
    (size(0, "length", 255), size(3, "leeway", 5))
}

/// A sized non-string passes through if short enough; otherwise it is an error.
fn truncate_other(interp: &mut Interp, value: &Value, given: &CallArgs) -> Run<Value> {
    let (length, leeway) = cut_length(given);
    match self::length(interp, value)?.as_int().and_then(|n| usize::try_from(n).ok()) {
        Some(n) if n <= length.saturating_add(leeway) => Ok(value.clone()),
        _ => Err(TemplateError::new(format!("truncate takes a string, not '{}'", value.type_name()))),
    }
}

fn truncate(interp: &mut Interp, s: &str, given: &CallArgs) -> Run<Value> {
    let (length, leeway) = cut_length(given);
    let end = given.get(2, "end").map_or_else(|| "...".to_owned(), str_of);
    let count = s.chars().count();
    if count <= length.saturating_add(leeway) {
        return interp.text(s);
    }
    let keep = length.checked_sub(end.chars().count());
    let keep = keep.ok_or_else(|| {
        TemplateError::new(format!("expected length >= {}, got {length}", end.chars().count()))
    })?;
    let cut: String = s.chars().take(keep).collect();
    if given.get(1, "killwords").is_some_and(Value::truth) {
        return interp.text(cut + &end);
    }
    let words = cut.rsplit_once(' ').map_or(cut.as_str(), |(left, _)| left);
    interp.text(format!("{words}{end}"))
}

fn xmlattr(interp: &mut Interp, value: &Value, given: &CallArgs) -> Run<Value> {
    let Value::Dict(d) = value else { return Err(TemplateError::new("xmlattr takes a mapping")) };
    let mut parts = Vec::new();
    for (key, value) in &d.map {
        if !matches!(value, Value::None | Value::Undefined(_)) {
            parts.push(format!("{}=\"{}\"", escape_html(&str_of(&key.0)), escape_html(&str_of(value))));
        }
    }
    let auto = given.get(0, "autospace").is_none_or(Value::truth);
    let text = parts.join(" ");
    interp.text(if auto && !text.is_empty() { format!(" {text}") } else { text })
}

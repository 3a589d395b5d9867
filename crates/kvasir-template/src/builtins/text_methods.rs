//! Python's string methods.

use crate::builtins::iterate::iterate;
use crate::builtins::{signatures, str_format};
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::syntax::lexer::python_space;
use crate::values::repr::printable;
use crate::values::value::Value;
use std::ops::Range;

const MAX_WIDTH: usize = 4096;

fn wanted<'a>(given: &'a CallArgs, place: usize, name: &str) -> Run<&'a str> {
    match given.positional.get(place) {
        Some(Value::Str(s)) => Ok(s),
        Some(other) => Err(other.missing().unwrap_or_else(|| {
            TemplateError::new(format!("{name}() argument must be str, not {}", other.type_name()))
        })),
        None => Err(TemplateError::new(format!("{name}() takes another argument"))),
    }
}

/// An optional string argument; Python's `None` counts as absent.
fn optional<'a>(given: &'a CallArgs, place: usize, key: &str, name: &str) -> Run<Option<&'a str>> {
    match given.get(place, key) {
        None | Some(Value::None) => Ok(None),
        Some(Value::Str(s)) => Ok(Some(s)),
        Some(other) => Err(other.missing().unwrap_or_else(|| {
            TemplateError::new(format!("{name} arg must be None or str, not {}", other.type_name()))
        })),
    }
}

/// An optional integer argument; Python's `None` is an error.
fn integer(given: &CallArgs, place: usize, key: &str) -> Run<Option<i128>> {
    let wrong = |v: &Value| {
        TemplateError::new(format!("{key}: '{}' object cannot be interpreted as an integer", v.type_name()))
    };
    given.get(place, key).map(|v| v.as_int().ok_or_else(|| wrong(v))).transpose()
}

/// Calls a string method.
pub(crate) fn call(interp: &mut Interp, s: &str, name: &str, given: &CallArgs) -> Run<Value> {
    signatures::text_method(name, given)?;
    interp.work(s.len())?;
    match name {
        "upper" => interp.text(s.to_uppercase()),
        "lower" => interp.text(s.to_lowercase()),
        "casefold" => interp.text(s.to_lowercase().replace('ß', "ss")),
        "capitalize" => interp.text(capitalize(s)),
        "title" => interp.text(title(s)),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            interp.text(s.chars().map(swap).collect::<String>())
        }
        "strip" | "lstrip" | "rstrip" => {
            let chars = optional(given, 0, "chars", name)?;
            let strip = |c: char| chars.map_or_else(|| python_space(c), |set| set.contains(c));
            let mut out = s;
            if name != "rstrip" {
                out = out.trim_start_matches(strip);
            }
            if name != "lstrip" {
                out = out.trim_end_matches(strip);
            }
            interp.text(out)
        }
        "removeprefix" => interp.text(s.strip_prefix(wanted(given, 0, name)?).unwrap_or(s)),
        "removesuffix" => interp.text(s.strip_suffix(wanted(given, 0, name)?).unwrap_or(s)),
        "replace" => {
            let count = integer(given, 2, "count")?.unwrap_or(-1);
            replace(interp, s, wanted(given, 0, name)?, wanted(given, 1, name)?, count)
        }
        "split" | "rsplit" => split(interp, s, name == "rsplit", given),
        "splitlines" => {
            let keep = integer(given, 0, "keepends")?.is_some_and(|keep| keep != 0);
            let lines = split_lines(s, keep);
            interp.room_for(lines.len())?;
            Value::list(lines.into_iter().map(Value::str).collect())
        }
        "join" => {
            let parts = given
                .positional
                .first()
                .ok_or_else(|| TemplateError::new("join() takes exactly one argument"))?;
            let parts = iterate(interp, parts)?;
            for (i, part) in parts.iter().enumerate() {
                if part.as_str().is_none() {
                    let why = format!("sequence item {i}: expected str instance, {} found", part.type_name());
                    return Err(TemplateError::new(why));
                }
            }
            join(interp, &parts, s)
        }
        "center" | "ljust" | "rjust" | "zfill" => justify(interp, s, name, given),
        "expandtabs" => {
            let size = integer(given, 0, "tabsize")?.unwrap_or(8).clamp(0, 64) as usize;
            interp.room(s.len().saturating_mul(size.max(1)))?;
            Ok(Value::str(expand_tabs(s, size)))
        }
        "format" => str_format::format(interp, s, given),
        "format_map" => {
            let Some(Value::Dict(map)) = given.positional.first() else {
                return Err(TemplateError::new("format_map() takes a mapping"));
            };
            let named = map.map.iter().filter_map(|(k, v)| match &k.0 {
                Value::Str(name) => Some((name.clone(), v.clone())),
                _ => None,
            });
            let given = CallArgs { positional: Vec::new(), named: named.collect() };
            str_format::format(interp, s, &given)
        }
        _ => match search(interp, s, name, given) {
            Some(found) => found,
            None => predicate(s, name),
        },
    }
}

/// Search methods; `None` if `name` is not one of them.
fn search(interp: &mut Interp, s: &str, name: &str, given: &CallArgs) -> Option<Run<Value>> {
    Some(match name {
        "partition" | "rpartition" => partition(interp, s, name, given),
        "startswith" | "endswith" => begins_or_ends(s, name, given),
        "count" => count(s, name, given),
        "find" | "rfind" | "index" | "rindex" => find(s, name, given),
        _ => return None,
    })
}

fn partition(interp: &mut Interp, s: &str, name: &str, given: &CallArgs) -> Run<Value> {
    let sep = wanted(given, 0, name)?;
    if sep.is_empty() {
        return Err(TemplateError::new("empty separator"));
    }
    let parts = if name == "partition" { s.split_once(sep) } else { s.rsplit_once(sep) };
    let parts = match parts {
        Some((a, b)) => [a, sep, b],
        None if name == "partition" => [s, "", ""],
        None => ["", "", s],
    };
    interp.room(s.len())?;
    Value::tuple(parts.into_iter().map(Value::str).collect())
}

fn begins_or_ends(s: &str, name: &str, given: &CallArgs) -> Run<Value> {
    let within = ranged(s, given)?.map(|range| &s[range]);
    let test = |part: &str| {
        within.is_some_and(|w| if name == "startswith" { w.starts_with(part) } else { w.ends_with(part) })
    };
    match given.positional.first() {
        Some(Value::Tuple(parts)) => {
            Ok(Value::Bool(parts.items.iter().any(|p| p.as_str().is_some_and(test))))
        }
        _ => Ok(Value::Bool(test(wanted(given, 0, name)?))),
    }
}

fn count(s: &str, name: &str, given: &CallArgs) -> Run<Value> {
    let part = wanted(given, 0, name)?;
    let n = ranged(s, given)?.map_or(0, |range| match &s[range] {
        within if part.is_empty() => within.chars().count() + 1,
        within => within.matches(part).count(),
    });
    Ok(Value::Int(n as i128))
}

fn find(s: &str, name: &str, given: &CallArgs) -> Run<Value> {
    let part = wanted(given, 0, name)?;
    let at = ranged(s, given)?.and_then(|range| {
        let (from, within) = (range.start, &s[range]);
        let at = if name.starts_with('r') { within.rfind(part) } else { within.find(part) };
        at.map(|at| from + at)
    });
    match at {
        Some(at) => Ok(Value::Int(s[..at].chars().count() as i128)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(TemplateError::new("substring not found")),
    }
}

/// Predicate methods (`isalnum`, `isdigit`, …).
fn predicate(s: &str, name: &str) -> Run<Value> {
    let flag = |f: fn(char) -> bool| Ok(Value::Bool(!s.is_empty() && s.chars().all(f)));
    match name {
        "isalnum" => flag(char::is_alphanumeric),
        "isalpha" => flag(char::is_alphabetic),
        "isascii" => Ok(Value::Bool(s.is_ascii())),
        "isdecimal" => flag(|c| c.is_ascii_digit()),
        "isdigit" => flag(|c| c.is_ascii_digit() || "⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉".contains(c)),
        "isnumeric" => flag(char::is_numeric),
        "isspace" => flag(python_space),
        "isprintable" => Ok(Value::Bool(s.chars().all(printable))),
        "isidentifier" => {
            let start = s.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
            Ok(Value::Bool(start && s.chars().all(|c| c.is_alphanumeric() || c == '_')))
        }
        "islower" => Ok(Value::Bool(cased(s, char::is_lowercase))),
        "isupper" => Ok(Value::Bool(cased(s, char::is_uppercase))),
        "istitle" => Ok(Value::Bool(s.chars().any(char::is_alphabetic) && title(s) == s)),
        _ => Err(TemplateError::new(format!("no method {name}"))),
    }
}

/// Byte range of the optional `start` and `end` arguments; `None` if `start` is past `end` or the
/// text.
fn ranged(s: &str, given: &CallArgs) -> Run<Option<Range<usize>>> {
    let (Some(start), end) = (given.positional.get(1), given.positional.get(2)) else {
        return Ok(Some(0..s.len()));
    };
    let count = s.chars().count() as i128;
    let place = |v: &Value, default: i128| match v {
        Value::None => Ok(default),
        v => v
            .as_int()
            .map(|n| if n < 0 { (n + count).max(0) } else { n })
            .ok_or_else(|| TemplateError::new("slice indices must be integers or None")),
    };
    let start = place(start, 0)?;
    let end = end.map_or(Ok(count), |e| place(e, count))?.min(count);
    let byte = |n: i128| s.char_indices().nth(n as usize).map_or(s.len(), |(i, _)| i);
    Ok((start <= end).then(|| byte(start)..byte(end)))
}

pub(crate) fn replace(interp: &mut Interp, s: &str, old: &str, new: &str, count: i128) -> Run<Value> {
    interp.work(s.len())?;
    let found = if old.is_empty() { s.chars().count() + 1 } else { s.matches(old).count() };
    let times = usize::try_from(count).map_or(found, |c| c.min(found));
    interp.room(s.len().saturating_add(times.saturating_mul(new.len())))?;
    Ok(Value::str(s.replacen(old, new, times)))
}

pub(crate) fn join(interp: &mut Interp, parts: &[Value], between: &str) -> Run<Value> {
    let mut out = String::new();
    interp.room(between.len().saturating_mul(parts.len()))?;
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            out.push_str(between);
        }
        let before = out.len();
        crate::values::repr::write_str(part, &mut out);
        interp.room(out.len() - before)?;
    }
    interp.room(out.len())?;
    Ok(Value::str(out))
}

fn split(interp: &mut Interp, s: &str, from_right: bool, given: &CallArgs) -> Run<Value> {
    let sep = optional(given, 0, "sep", "split()")?;
    let max = integer(given, 1, "maxsplit")?.unwrap_or(-1);
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    match sep {
        Some("") => return Err(TemplateError::new("empty separator")),
        Some(sep) => {
            interp.room_for(s.matches(sep).count().min(max).saturating_add(1))?;
            let limit = max.saturating_add(1);
            if from_right { parts.extend(s.rsplitn(limit, sep)) } else { parts.extend(s.splitn(limit, sep)) }
        }
        None => {
            let words = s.split(python_space).filter(|w| !w.is_empty()).count();
            interp.room_for(words)?;
            let mut rest = if from_right {
                s.trim_end_matches(python_space)
            } else {
                s.trim_start_matches(python_space)
            };
            while !rest.is_empty() && parts.len() < max {
                if from_right {
                    let (left, word) = rest.rsplit_once(python_space).unwrap_or(("", rest));
                    parts.push(word);
                    rest = left.trim_end_matches(python_space);
                } else {
                    let (word, right) = rest.split_once(python_space).unwrap_or((rest, ""));
                    parts.push(word);
                    rest = right.trim_start_matches(python_space);
                }
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    interp.room(s.len())?;
    Value::list(parts.into_iter().map(Value::str).collect())
}

pub(crate) fn split_lines(s: &str, keep: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let end = |c: char| {
            matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
        };
        let Some(at) = rest.find(end) else {
            out.push(rest);
            break;
        };
        let tail = &rest[at..];
        let mark = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(1, char::len_utf8) };
        out.push(&rest[..if keep { at + mark } else { at }]);
        rest = &rest[at + mark..];
    }
    out
}

pub(crate) fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    match chars.next() {
        Some(first) => title_case(first) + &chars.as_str().to_lowercase(),
        None => String::new(),
    }
}

/// Title case of a letter. If it expands to several letters, only the first is upper case.
fn title_case(c: char) -> String {
    match c {
        'Ǆ'..='ǆ' => "ǅ".into(),
        'Ǉ'..='ǉ' => "ǈ".into(),
        'Ǌ'..='ǌ' => "ǋ".into(),
        'Ǳ'..='ǳ' => "ǲ".into(),
        'ŉ' => "ʼN".into(),
        _ => {
            let mut capitals = c.to_uppercase();
            capitals.next().into_iter().chain(capitals.flat_map(char::to_lowercase)).collect()
        }
    }
}

/// Python's `str.title`: letters after a letter are lower case, others title case.
fn title(s: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in s.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out += &title_case(c)
        }
        inside = c.is_alphabetic();
    }
    out
}

fn justify(interp: &mut Interp, s: &str, name: &str, given: &CallArgs) -> Run<Value> {
    let width = given
        .positional
        .first()
        .and_then(Value::as_int)
        .ok_or_else(|| TemplateError::new(format!("{name}() takes a width")))?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    if width > MAX_WIDTH {
        return Err(TemplateError::new(format!("a width of more than {MAX_WIDTH}")));
    }
    let fill = match optional(given, 1, "fillchar", name)? {
        Some(fill) => fill.chars().next().unwrap_or(' '),
        None => {
            if name == "zfill" {
                '0'
            } else {
                ' '
            }
        }
    };
    let missing = width.saturating_sub(s.chars().count());
    let run = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    interp.text(match name {
        "ljust" => s.to_owned() + &run(missing),
        "rjust" => run(missing) + s,
        "zfill" => {
            let sign = usize::from(s.starts_with(['-', '+']));
            format!("{}{}{}", &s[..sign], run(missing), &s[sign..])
        }
        _ => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{s}{}", run(left), run(missing - left))
        }
    })
}

fn expand_tabs(s: &str, size: usize) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for c in s.chars() {
        match c {
            '\t' => {
                let n = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', n));
                column += n;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            _ => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}

/// Python's `str.islower` and `str.isupper`: at least one cased character, and all of the wanted
/// case.
pub(crate) fn cased(text: &str, wanted: fn(char) -> bool) -> bool {
    let mut cased = text.chars().filter(|c| c.is_lowercase() || c.is_uppercase()).peekable();
    cased.peek().is_some() && cased.all(wanted)
}

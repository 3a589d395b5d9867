//! Sequence filters: sorting, grouping, selecting, mapping and batching.

use crate::builtins::iterate::iterate;
use crate::builtins::{is_tests, methods};
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::values::repr::str_of;
use crate::values::sorting::sorted;
use crate::values::value::Value;
use indexmap::IndexSet;
use std::cmp::Ordering;

/// Resolves an attribute path such as `a.b.0`; items take precedence over attributes.
pub(crate) fn walk(interp: &mut Interp, value: &Value, path: &Value) -> Run<Value> {
    walk_or(interp, value, path, None)
}

/// Like `walk`, with a default for each step that yields undefined.
fn walk_or(interp: &mut Interp, value: &Value, path: &Value, default: Option<&Value>) -> Run<Value> {
    let default = default.filter(|d| !matches!(d, Value::None));
    let found = |value: Value| match default {
        Some(default) if value.is_undefined() => default.clone(),
        _ => value,
    };
    match path {
        Value::Str(path) => {
            let mut value = value.clone();
            for part in path.split('.') {
                let key = part.parse().map_or_else(|_| Value::str(part), Value::Int);
                value = found(interp.item(&value, &key)?);
            }
            Ok(value)
        }
        other => interp.item(value, other).map(found),
    }
}

/// The sort key of an item: its attribute, lower-cased unless `case_sensitive`.
fn sort_key(interp: &mut Interp, item: &Value, path: Option<&Value>, case_sensitive: bool) -> Run<Value> {
    let key = match path {
        Some(path) if !matches!(path, Value::None) => walk(interp, item, path)?,
        _ => item.clone(),
    };
    match &key {
        Value::Str(s) if !case_sensitive => interp.text(s.to_lowercase()),
        _ => Ok(key),
    }
}

pub(crate) fn apply(interp: &mut Interp, name: &str, value: &Value, given: &CallArgs) -> Run<Value> {
    if name == "dictsort" {
        return dictsort(interp, value, given);
    }
    if let (Value::Str(s), "reverse") = (value, name) {
        return interp.text(s.chars().rev().collect::<String>());
    }
    let lazy = matches!(name, "map" | "select" | "reject" | "selectattr" | "rejectattr");
    if lazy && !value.truth() && !value.is_undefined() {
        return Value::generator(Vec::new()); // falsy input, including None, yields nothing
    }
    let items = iterate(interp, value)?;
    let flag = |i: usize, name: &str| given.get(i, name).is_some_and(Value::truth);
    match name {
        "first" => {
            Ok(items.into_iter().next().unwrap_or_else(|| Value::undefined("the first item of nothing")))
        }
        "last" => {
            Ok(items.into_iter().next_back().unwrap_or_else(|| Value::undefined("the last item of nothing")))
        }
        "reverse" => Value::generator(items.into_iter().rev().collect()),
        "sort" => {
            sort(interp, items, given.get(2, "attribute"), flag(1, "case_sensitive"), flag(0, "reverse"))
                .and_then(Value::list)
        }
        "unique" => {
            let mut seen = IndexSet::new();
            let mut out = Vec::new();
            for item in items {
                let key = sort_key(interp, &item, given.get(1, "attribute"), flag(0, "case_sensitive"))?;
                if seen.insert(key.key()?) {
                    out.push(item);
                }
            }
            Value::generator(out)
        }
        "min" | "max" => {
            let path = given.get(1, "attribute").filter(|_| items.len() > 1);
            for item in items.iter().filter(|_| path.is_some()) {
                let key = sort_key(interp, item, path, true)?;
                key.missing().map_or(Ok(()), Err)?;
            }
            let sorted = sort(interp, items, path, flag(0, "case_sensitive"), name == "max")?;
            Ok(sorted.into_iter().next().unwrap_or_else(|| Value::undefined("the least of nothing")))
        }
        "groupby" => groupby(interp, items, given),
        "map" => map(interp, items, given),
        "select" | "reject" | "selectattr" | "rejectattr" => select(interp, name, items, given),
        "batch" | "slice" => chunks(interp, name, items, given),
        _ => Err(TemplateError::new(format!("no filter named {name:?}"))),
    }
}

fn sort(
    interp: &mut Interp,
    items: Vec<Value>,
    path: Option<&Value>,
    case: bool,
    reverse: bool,
) -> Run<Vec<Value>> {
    // A comma-separated attribute list sorts by the first, then the second, and so on.
    let paths: Vec<Option<Value>> = match path {
        Some(Value::Str(s)) => s.split(',').map(|p| Some(Value::str(p))).collect(),
        other => vec![other.cloned()],
    };
    // Each item takes part in about log2(n) comparisons.
    let compared = items.len().checked_ilog2().unwrap_or(0) as usize / 4;
    let mut keyed = Vec::new();
    for item in items {
        interp.work(64 * compared)?;
        let keys: Run<Vec<Value>> = paths.iter().map(|p| sort_key(interp, &item, p.as_ref(), case)).collect();
        interp.walks(&item)?;
        keyed.push((keys?, item));
    }
    let keyed = sorted(keyed, &mut |(a, _), (b, _)| {
        for (a, b) in a.iter().zip(b) {
            if a.equals(b) {
                continue; // also if both are undefined
            }
            if let Some(fault) = a.missing().or_else(|| b.missing()) {
                return Err(fault);
            }
            let order = a.order(b)?;
            if order.is_ne() {
                return Ok(if reverse { order.reverse() } else { order });
            }
        }
        Ok(Ordering::Equal)
    })?;
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

fn dictsort(interp: &mut Interp, value: &Value, given: &CallArgs) -> Run<Value> {
    let by = match given.get(1, "by").map_or("key", |b| b.as_str().unwrap_or_default()) {
        "key" => 0,
        "value" => 1,
        _ => return Err(TemplateError::new("you can only sort by either 'key' or 'value'")),
    };
    let flag = |i: usize, name: &str| given.get(i, name).is_some_and(Value::truth);
    let pairs = methods::pairs(value)?;
    interp.room_for(pairs.len())?;
    let path = Value::Int(by);
    sort(interp, pairs, Some(&path), flag(0, "case_sensitive"), flag(2, "reverse")).and_then(Value::list)
}

fn groupby(interp: &mut Interp, items: Vec<Value>, given: &CallArgs) -> Run<Value> {
    let path = given.get(0, "attribute").ok_or_else(|| TemplateError::new("groupby takes an attribute"))?;
    let case = given.get(2, "case_sensitive").is_some_and(Value::truth);
    let mut keyed = Vec::new();
    for item in items {
        let own = walk_or(interp, &item, path, given.get(1, "default"))?;
        let key = match &own {
            Value::Str(s) if !case => interp.text(s.to_lowercase())?,
            _ => own.clone(),
        };
        interp.walks(&key)?;
        keyed.push((key, own, item));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for (key, own, item) in sorted(keyed, &mut |(a, ..), (b, ..)| a.order(b))? {
        match groups.last_mut() {
            Some(group) if group.0.equals(&key) => group.2.push(item),
            _ => groups.push((key, own, vec![item])),
        }
    }
    let pairs = groups.into_iter().map(|(_, own, items)| Value::tuple(vec![own, Value::list(items)?]));
    Value::list(pairs.collect::<Run<_>>()?)
}

/// The arguments after the first `n` positional ones.
fn after(given: &CallArgs, n: usize) -> CallArgs {
    CallArgs { positional: given.positional.iter().skip(n).cloned().collect(), named: given.named.clone() }
}

fn map(interp: &mut Interp, items: Vec<Value>, given: &CallArgs) -> Run<Value> {
    let mut out = Vec::new();
    if given.positional.is_empty()
        && let Some(path) = given.named("attribute")
    {
        for item in items {
            out.push(walk_or(interp, &item, path, given.named("default"))?);
        }
        return Value::generator(out);
    }
    let Some(Value::Str(filter)) = given.positional.first() else {
        return Err(TemplateError::new("map requires a filter argument"));
    };
    let rest = after(given, 1);
    for item in items {
        interp.burn()?;
        out.push(interp.apply_filter(filter, item, &rest)?);
    }
    Value::generator(out)
}

fn select(interp: &mut Interp, name: &str, items: Vec<Value>, given: &CallArgs) -> Run<Value> {
    let by_attribute = name.ends_with("attr");
    let wanted = name.starts_with("select");
    let path = given.positional.first().filter(|_| by_attribute);
    if by_attribute && path.is_none() {
        return Err(TemplateError::new("missing parameter for attribute name"));
    }
    let skip = usize::from(by_attribute);
    let test = given.positional.get(skip).map(str_of);
    let rest = after(given, skip + 1);
    let mut out = Vec::new();
    for item in items {
        interp.burn()?;
        let value = match path {
            Some(path) => walk(interp, &item, path)?,
            None => item.clone(),
        };
        let found = match &test {
            Some(test) => is_tests::apply(interp, test, &value, &rest)?,
            None => value.truth(),
        };
        if found == wanted {
            out.push(item);
        }
    }
    Value::generator(out)
}

fn chunks(interp: &mut Interp, name: &str, items: Vec<Value>, given: &CallArgs) -> Run<Value> {
    let n = given
        .get(0, if name == "batch" { "linecount" } else { "slices" })
        .and_then(Value::as_int)
        .and_then(|n| usize::try_from(n).ok())
        .filter(|&n| n > 0);
    let n = n.ok_or_else(|| TemplateError::new(format!("{name} takes a number above 0")))?;
    let fill = given.get(1, "fill_with").filter(|f| !matches!(f, Value::None));
    interp.room_for(n.saturating_add(items.len()))?;
    let mut out = Vec::new();
    if name == "batch" {
        for chunk in items.chunks(n) {
            let mut chunk = chunk.to_vec();
            if let Some(fill) = fill {
                chunk.resize(n, fill.clone());
            }
            out.push(Value::list(chunk)?);
        }
        return Value::generator(out);
    }
    let (each, more) = (items.len() / n, items.len() % n);
    let mut rest = items.into_iter();
    for i in 0..n {
        let mut part: Vec<Value> = rest.by_ref().take(each + usize::from(i < more)).collect();
        if let Some(fill) = fill
            && i >= more
        {
            part.push(fill.clone());
        }
        out.push(Value::list(part)?);
    }
    Value::generator(out)
}

//! Python's `str.format`: replacement fields, nested format specs, conversions.

use crate::builtins::format::{Spec, digits, number, pad};
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::values::repr::{ascii, str_of, write_repr};
use crate::values::value::Value;

/// Field numbering: automatic or manual, never mixed.
#[derive(Default)]
struct Places {
    counted: usize,
    by_number: bool,
}

impl Places {
    fn next(&mut self) -> Run<usize> {
        if self.by_number {
            return Err(TemplateError::new(
                "cannot switch from manual field specification to automatic field numbering",
            ));
        }
        self.counted += 1;
        Ok(self.counted - 1)
    }

    fn numbered(&mut self) -> Run<()> {
        if self.counted > 0 {
            return Err(TemplateError::new(
                "cannot switch from automatic field numbering to manual field specification",
            ));
        }
        self.by_number = true;
        Ok(())
    }
}

/// Python's `text.format(…)`.
pub(crate) fn format(interp: &mut Interp, text: &str, given: &CallArgs) -> Run<Value> {
    interp.work(text.len())?;
    let out = fields(interp, text, given, &mut Places::default(), 2)?;
    interp.text(out)
}

/// Expands the replacement fields of a text; a field's format spec is expanded one level deeper.
fn fields(
    interp: &mut Interp,
    text: &str,
    given: &CallArgs,
    places: &mut Places,
    levels: usize,
) -> Run<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if levels > 1 && rest.starts_with(brace) {
            out.push_str(brace);
            rest = &rest[1..];
            continue;
        }
        if levels == 0 {
            return Err(TemplateError::new("max string recursion exceeded"));
        }
        let end = closing(rest).filter(|_| brace == "{");
        let end =
            end.ok_or_else(|| TemplateError::new(format!("single '{brace}' encountered in format string")))?;
        let (field, spec) = rest[..end].split_once(':').unwrap_or((&rest[..end], ""));
        rest = &rest[end + 1..];
        let (field, conversion) = match field.split_once('!') {
            Some((field, conversion)) => (field, Some(conversion)),
            None => (field, None),
        };
        let value = lookup(interp, field, places, given)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::str(str_of(&value)),
            Some("a") => Value::str(ascii(&value)),
            Some("r") => {
                let mut text = String::new();
                write_repr(&value, &mut text);
                Value::str(text)
            }
            Some(other) => return Err(TemplateError::new(format!("unknown conversion specifier '{other}'"))),
        };
        let spec = fields(interp, spec, given, places, levels - 1)?;
        one_brace(&value, &spec, &mut out)?;
        interp.fits(out.len())?;
    }
    out.push_str(rest);
    Ok(out)
}

/// Index of the brace that closes a field, skipping fields nested in its format spec.
fn closing(rest: &str) -> Option<usize> {
    let mut open = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn lookup(interp: &mut Interp, field: &str, places: &mut Places, given: &CallArgs) -> Run<Value> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (name, mut path) = field.split_at(end);
    let mut value = if name.is_empty() {
        given.positional.get(places.next()?).cloned()
    } else if let Ok(place) = name.parse::<usize>() {
        places.numbered()?;
        given.positional.get(place).cloned()
    } else {
        given.named(name).cloned()
    }
    .ok_or_else(|| TemplateError::new(format!("replacement {name:?} is not given")))?;
    while !path.is_empty() {
        if let Some(after) = path.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = interp.attr(&value, &after[..end].into())?;
            path = &after[end..];
        } else {
            let inner = path.strip_prefix('[').and_then(|p| p.split_once(']'));
            let (key, after) =
                inner.ok_or_else(|| TemplateError::new("expected '}' before end of string"))?;
            let key = key.parse().map_or_else(|_| Value::str(key), Value::Int);
            value = interp.item(&value, &key)?;
            path = after;
        }
    }
    Ok(value)
}

fn one_brace(value: &Value, text: &str, out: &mut String) -> Run<()> {
    let mut spec = Spec { fill: ' ', ..Spec::default() };
    let (mut chars, mut filled) = (text.chars().peekable(), false);
    let mut ahead = text.chars();
    let (first, second) = (ahead.next(), ahead.next());
    if let (Some(fill), Some(align @ ('<' | '>' | '^' | '='))) = (first, second) {
        (spec.fill, spec.align, filled) = (fill, Some(align), true);
        chars.nth(1);
    } else if let Some(align @ ('<' | '>' | '^' | '=')) = first {
        spec.align = Some(align);
        chars.next();
    }
    spec.sign = chars.next_if(|c| "+- ".contains(*c));
    spec.alternate = chars.next_if_eq(&'#').is_some();
    let is_number = matches!(value, Value::Int(_) | Value::Float(_))
        || (matches!(value, Value::Bool(_)) && !text.is_empty());
    if !filled && chars.next_if_eq(&'0').is_some() {
        spec.fill = '0';
        spec.align = spec.align.or(is_number.then_some('='));
    }
    let mut none = || Err(TemplateError::new("invalid format specifier"));
    spec.width = digits(&mut chars, &mut none)?.unwrap_or(0);
    spec.grouping = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = digits(&mut chars, &mut none)?;
    }
    spec.kind = chars.next();
    if chars.next().is_some() {
        return Err(TemplateError::new("invalid format specifier"));
    }
    let refused = || {
        let why = format!("the format {text:?} is not for an object of type '{}'", value.type_name());
        Err(TemplateError::new(why))
    };
    if is_number {
        let whole = !matches!(value, Value::Float(_));
        let integral = spec.kind.is_none_or(|k| "bcdnoxX".contains(k));
        if spec.kind == Some('s') || (whole && integral && spec.precision.is_some()) {
            return refused();
        }
        return number(value, &spec, out);
    }
    let wrong = match value.as_str() {
        Some(_) => spec.kind.is_some_and(|k| k != 's') || spec.align == Some('=') || spec.sign.is_some(),
        None => !text.is_empty(),
    };
    if wrong {
        return refused();
    }
    let mut text = str_of(value);
    if let Some(p) = spec.precision {
        text = text.chars().take(p).collect();
    }
    spec.align = spec.align.or(Some('<'));
    pad(&text, 0, &spec, out);
    Ok(())
}

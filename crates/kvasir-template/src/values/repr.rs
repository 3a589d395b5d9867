//! Python's `str` and `repr` of values.

use crate::syntax::lexer::python_space;
use crate::values::value::{Value, View};

/// Python's `str(value)`, also used by print statements.
pub(crate) fn str_of(value: &Value) -> String {
    let mut out = String::new();
    write_str(value, &mut out);
    out
}

pub(crate) fn write_str(value: &Value, out: &mut String) {
    match value {
        Value::Undefined(_) => {}
        Value::Str(s) | Value::Safe(s) => out.push_str(s),
        other => write_repr(other, out),
    }
}

pub(crate) fn write_repr(value: &Value, out: &mut String) {
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(b) => out.push_str(if *b { "True" } else { "False" }),
        Value::Int(n) => out.push_str(&n.to_string()),
        Value::Float(f) => out.push_str(&float(*f)),
        Value::Str(s) | Value::Safe(s) => quote(s, out),
        Value::List(l) => items('[', &l.items, ']', out),
        Value::Tuple(t) if t.items.len() == 1 => {
            out.push('(');
            t.items.iter().for_each(|v| write_repr(v, out));
            out.push_str(",)");
        }
        Value::Tuple(t) => items('(', &t.items, ')', out),
        Value::Dict(d) => {
            out.push('{');
            for (i, (k, v)) in d.map.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(&k.0, out);
                out.push_str(": ");
                write_repr(v, out);
            }
            out.push('}');
        }
        Value::View(l, view) if *view != View::Generator => {
            out.push_str(value.type_name());
            out.push('(');
            items('[', &l.items, ']', out);
            out.push(')');
        }
        Value::Macro(m, _) => out.push_str(&format!("<Macro '{}'>", m.name)),
        other => out.push_str(&format!("<{}>", other.type_name())),
    }
}

fn items(open: char, all: &[Value], close: char, out: &mut String) {
    out.push(open);
    for (i, v) in all.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_repr(v, out);
    }
    out.push(close);
}

/// Python's `repr(float)`: shortest round-trip digits, with an exponent outside 1e-4 to 1e16.
pub(crate) fn float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{f:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{f}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if printable(c) => out.push(c),
            c => escape(c, out),
        }
    }
    out.push(mark);
}

/// Python's `ascii(value)`: `repr` with non-ASCII characters escaped.
pub(crate) fn ascii(value: &Value) -> String {
    let (mut text, mut out) = (String::new(), String::new());
    write_repr(value, &mut text);
    for c in text.chars() {
        if c.is_ascii() { out.push(c) } else { escape(c, &mut out) }
    }
    out
}

fn escape(c: char, out: &mut String) {
    let code = c as u32;
    out.push_str(&match code {
        0..0x100 => format!("\\x{code:02x}"),
        0x100..0x10000 => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    });
}

/// Approximates `str.isprintable`: no control, format, private-use or separator characters except
/// space.
pub(crate) fn printable(c: char) -> bool {
    if c == ' ' {
        return true;
    }
    let n = c as u32;
    let format = matches!(n,
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f
        | 0xfeff | 0xfff9..=0xfffb | 0xe000..=0xf8ff | 0xfffe | 0xffff | 0xe0001..=0xe007f | 0xf0000..=0x10_ffff);
    !(c.is_control() || python_space(c) || format)
}

/// Escapes text for HTML, as MarkupSafe does.
pub(crate) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

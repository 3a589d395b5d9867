//! `tojson` as defined by Transformers: Python's `json.dumps` without HTML or non-ASCII escaping.

use crate::error::{Run, TemplateError};
use crate::values::repr::float;
use crate::values::sorting::sorted;
use crate::values::value::{Key, Value};

pub(crate) struct Style {
    pub(crate) ascii: bool,
    pub(crate) indent: Option<String>,
    pub(crate) item: String,
    pub(crate) key: String,
    pub(crate) sort: bool,
    /// Maximum output bytes.
    pub(crate) longest: usize,
}

pub(crate) fn dumps(value: &Value, style: &Style) -> Run<String> {
    let mut out = String::new();
    write(value, style, 0, &mut out)?;
    Ok(out)
}

fn write(value: &Value, style: &Style, level: usize, out: &mut String) -> Run<()> {
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Int(n) => out.push_str(&n.to_string()),
        Value::Float(f) => out.push_str(&number(*f)),
        Value::Str(s) | Value::Safe(s) => string(s, style.ascii, out),
        Value::List(l) | Value::Tuple(l) => {
            let parts = l.items.iter();
            wrap(['[', ']'], parts, style, level, out, |v, out| write(v, style, level + 1, out))?;
        }
        Value::Dict(d) => {
            let mut pairs: Vec<(&Key, &Value)> = d.map.iter().collect();
            if style.sort {
                pairs = sorted(pairs, &mut |a, b| a.0.0.order(&b.0.0))?;
            }
            wrap(['{', '}'], pairs.iter(), style, level, out, |(k, v), out| {
                key(&k.0, style, out)?;
                out.push_str(&style.key);
                write(v, style, level + 1, out)
            })?;
        }
        other => {
            return Err(TemplateError::new(format!(
                "Object of type {} is not JSON serializable",
                other.type_name()
            )));
        }
    }
    Ok(())
}

fn wrap<T>(
    [open, close]: [char; 2],
    parts: impl ExactSizeIterator<Item = T>,
    style: &Style,
    level: usize,
    out: &mut String,
    mut each: impl FnMut(T, &mut String) -> Run<()>,
) -> Run<()> {
    out.push(open);
    let empty = parts.len() == 0;
    let line = |level: usize, out: &mut String| {
        let indent = style.indent.as_deref().unwrap_or_default();
        if out.len().saturating_add(indent.len().saturating_mul(level)) > style.longest {
            return Err(TemplateError::new(format!("a value of more than {} bytes", style.longest)));
        }
        if style.indent.is_some() {
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
        Ok(())
    };
    for (i, part) in parts.enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        line(level + 1, out)?;
        each(part, out)?;
    }
    if !empty {
        line(level, out)?;
    }
    out.push(close);
    Ok(())
}

fn key(key: &Value, style: &Style, out: &mut String) -> Run<()> {
    let text = match key {
        Value::Str(s) => {
            string(s, style.ascii, out);
            return Ok(());
        }
        Value::None => "null".to_owned(),
        Value::Bool(b) => if *b { "true" } else { "false" }.to_owned(),
        Value::Int(n) => n.to_string(),
        Value::Float(f) => number(*f),
        other => {
            let why = format!("keys must be str, int, float, bool or None, not {}", other.type_name());
            return Err(TemplateError::new(why));
        }
    };
    string(&text, style.ascii, out);
    Ok(())
}

fn number(f: f64) -> String {
    match float(f).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        other => other.into(),
    }
}

fn string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ascii && !(' '..='~').contains(&c) => {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().for_each(|u| out.push_str(&format!("\\u{u:04x}")));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

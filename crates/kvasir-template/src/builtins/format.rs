//! Python's `%` formatting, and the number, padding and width formatting shared with `str.format`.

use crate::error::{Run, TemplateError};
use crate::state::Interp;
use crate::values::repr::{ascii, float, str_of, write_repr};
use crate::values::value::Value;

/// Upper bound on widths and precisions; protects memory against hostile templates.
const MAX_WIDTH: usize = 4096;

#[derive(Default, Clone)]
pub(crate) struct Spec {
    pub(crate) fill: char,
    pub(crate) align: Option<char>,
    pub(crate) sign: Option<char>,
    pub(crate) alternate: bool,
    pub(crate) width: usize,
    pub(crate) grouping: Option<char>,
    pub(crate) precision: Option<usize>,
    pub(crate) kind: Option<char>,
}

/// Python's `text % values`.
pub(crate) fn percent(interp: &mut Interp, text: &str, values: &Value) -> Run<Value> {
    let single = [values.clone()];
    let all: &[Value] = if let Value::Tuple(t) = values { &t.items } else { &single };
    let (mut out, mut next) = (String::new(), 0);
    let mut named = false;
    interp.work(text.len())?;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut value = None;
        if chars.peek() == Some(&'(') {
            chars.next();
            let key: String = chars.by_ref().take_while(|&c| c != ')').collect();
            let Value::Dict(d) = values else { return Err(TemplateError::new("format requires a mapping")) };
            let found = d.get(&Value::str(&key)).cloned();
            value = Some(found.ok_or_else(|| TemplateError::new(format!("format key '{key}' is missing")))?);
            named = true;
        }
        let mut spec = Spec { fill: ' ', align: Some('>'), ..Spec::default() };
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => (spec.fill, spec.align) = (' ', Some('<')),
                '0' if spec.align != Some('<') => (spec.fill, spec.align) = ('0', Some('=')),
                '#' => spec.alternate = true,
                '+' | ' ' => spec.sign = Some(flag),
                _ => {}
            }
        }
        let mut take = || {
            next += 1;
            all.get(next - 1)
                .cloned()
                .ok_or_else(|| TemplateError::new("not enough arguments for format string"))
        };
        spec.width = digits(&mut chars, &mut take)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(digits(&mut chars, &mut take)?.unwrap_or(0));
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let kind = chars.next().ok_or_else(|| TemplateError::new("incomplete format"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = value.map_or_else(take, Ok)?;
        spec.kind = Some(kind);
        one_percent(&value, kind, spec, &mut out)?;
        interp.fits(out.len())?;
    }
    if !named && matches!(values, Value::Tuple(_)) && next < all.len() {
        return Err(TemplateError::new("not all arguments converted during string formatting"));
    }
    if !named
        && next == 0
        && !matches!(values, Value::Tuple(_) | Value::Dict(_) | Value::List(_) | Value::Undefined(_))
    {
        return Err(TemplateError::new("not all arguments converted during string formatting"));
    }
    interp.text(out)
}

pub(crate) fn digits(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    take: &mut dyn FnMut() -> Run<Value>,
) -> Run<Option<usize>> {
    if chars.next_if_eq(&'*').is_some() {
        let width = take()?.as_int().and_then(|n| usize::try_from(n).ok());
        return width.filter(|&w| w <= MAX_WIDTH).map(Some).ok_or_else(|| TemplateError::new("bad width"));
    }
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        let n = number.unwrap_or(0) * 10 + digit as usize;
        if n > MAX_WIDTH {
            return Err(TemplateError::new(format!("a width of more than {MAX_WIDTH}")));
        }
        number = Some(n);
    }
    Ok(number)
}

fn one_percent(value: &Value, kind: char, mut spec: Spec, out: &mut String) -> Run<()> {
    let text = match kind {
        's' | 'r' | 'a' => {
            let mut text = String::new();
            match kind {
                's' => text = str_of(value),
                'r' => write_repr(value, &mut text),
                _ => text = ascii(value),
            }
            if spec.fill == '0' {
                (spec.fill, spec.align) = (' ', Some('>'));
            }
            match spec.precision {
                Some(p) => text.chars().take(p).collect(),
                None => text,
            }
        }
        'c' => match value {
            Value::Str(s) if s.chars().count() == 1 => s.to_string(),
            other => {
                let c = other.as_int().and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32);
                c.ok_or_else(|| TemplateError::new("%c requires int or char"))?.to_string()
            }
        },
        'd' | 'i' | 'u' => {
            let n = match value {
                Value::Float(f) if f.is_finite() => f.trunc() as i128,
                other => other.as_int().ok_or_else(|| number_wanted(kind, value))?,
            };
            spec.kind = Some('d');
            spec.precision = None;
            return number(&Value::Int(n), &spec, out);
        }
        'x' | 'X' | 'o' => {
            let n = value.as_int().ok_or_else(|| number_wanted(kind, value))?;
            return number(&Value::Int(n), &spec, out);
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let f = value.number().ok_or_else(|| number_wanted(kind, value))?;
            return number(&Value::Float(f), &spec, out);
        }
        other => return Err(TemplateError::new(format!("unsupported format character '{other}'"))),
    };
    pad(&text, 0, &spec, out);
    Ok(())
}

fn number_wanted(kind: char, value: &Value) -> TemplateError {
    let why = format!("%{kind} format: a real number is required, not {}", value.type_name());
    value.missing().unwrap_or_else(|| TemplateError::new(why))
}

/// Pads to the width. With `=` alignment the fill goes after the first `sign` bytes.
pub(crate) fn pad(text: &str, sign: usize, spec: &Spec, out: &mut String) {
    let missing = spec.width.saturating_sub(text.chars().count());
    let fill = |n: usize, out: &mut String| out.extend(std::iter::repeat_n(spec.fill, n));
    match spec.align {
        Some('<') => {
            out.push_str(text);
            fill(missing, out);
        }
        Some('^') => {
            fill(missing / 2, out);
            out.push_str(text);
            fill(missing - missing / 2, out);
        }
        Some('=') => {
            out.push_str(&text[..sign]);
            fill(missing, out);
            out.push_str(&text[sign..]);
        }
        _ => {
            fill(missing, out);
            out.push_str(text);
        }
    }
}

/// Formats a number.
pub(crate) fn number(value: &Value, spec: &Spec, out: &mut String) -> Run<()> {
    let (negative, mut digits) = match (value.as_int(), spec.kind) {
        (Some(n), None | Some('d' | 'n')) => (n < 0, n.unsigned_abs().to_string()),
        (Some(n), Some('x')) => {
            (n < 0, format!("{}{:x}", if spec.alternate { "0x" } else { "" }, n.unsigned_abs()))
        }
        (Some(n), Some('X')) => {
            (n < 0, format!("{}{:X}", if spec.alternate { "0X" } else { "" }, n.unsigned_abs()))
        }
        (Some(n), Some('o')) => {
            (n < 0, format!("{}{:o}", if spec.alternate { "0o" } else { "" }, n.unsigned_abs()))
        }
        (Some(n), Some('b')) => {
            (n < 0, format!("{}{:b}", if spec.alternate { "0b" } else { "" }, n.unsigned_abs()))
        }
        (Some(n), Some('c')) => {
            let c = u32::try_from(n).ok().and_then(char::from_u32);
            (false, c.ok_or_else(|| TemplateError::new("%c arg not in range"))?.to_string())
        }
        _ => {
            let f = value.number().ok_or_else(|| number_wanted('f', value))?;
            (f.is_sign_negative() && !f.is_nan(), float_digits(f.abs(), spec)?)
        }
    };
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    if let Some(mark) = spec.grouping {
        let whole = whole_digits(&digits);
        let beside = sign.len() + digits.len() - whole;
        let mut filled = whole;
        // Zeros that fill the width are grouped as well.
        while (spec.fill, spec.align) == ('0', Some('='))
            && beside + filled + filled.saturating_sub(1) / 3 < spec.width
        {
            filled += 1;
        }
        digits = grouped(&("0".repeat(filled - whole) + &digits), mark);
    }
    pad(&format!("{sign}{digits}"), sign.len(), spec, out);
    Ok(())
}

fn float_digits(f: f64, spec: &Spec) -> Run<String> {
    if f.is_nan() {
        return Ok("nan".into());
    }
    if f.is_infinite() {
        return Ok("inf".into());
    }
    let precision = spec.precision.unwrap_or(6);
    Ok(match spec.kind {
        Some('f' | 'F') => format!("{f:.precision$}"),
        Some('%') => format!("{:.precision$}%", f * 100.0),
        Some(kind @ ('e' | 'E')) => {
            let text = exponent(f, precision);
            if kind == 'E' { text.to_uppercase() } else { text }
        }
        Some('g' | 'G') => general(f, precision.max(1), spec.alternate),
        None if spec.precision.is_some() => {
            let text = general(f, precision.max(1), false);
            if text.contains(['.', 'e']) { text } else { text + ".0" }
        }
        None => float(f),
        Some(other) => return Err(TemplateError::new(format!("unknown format code '{other}' for a float"))),
    })
}

fn exponent(f: f64, precision: usize) -> String {
    let text = format!("{f:.precision$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
}

fn general(f: f64, precision: usize, keep_zeros: bool) -> String {
    let power: i32 =
        exponent(f, precision - 1).rsplit_once('e').and_then(|(_, p)| p.parse().ok()).unwrap_or(0);
    let trim = |text: String| {
        if keep_zeros || !text.contains('.') {
            return text;
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if power < -4 || power >= precision as i32 {
        let text = exponent(f, precision - 1);
        let (digits, power) = text.split_once('e').unwrap_or((&text, "+00"));
        format!("{}e{power}", trim(digits.to_owned()))
    } else {
        let places = (precision as i32 - 1 - power).max(0) as usize;
        trim(format!("{f:.places$}"))
    }
}

/// Number of leading digits.
fn whole_digits(digits: &str) -> usize {
    digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())
}

fn grouped(digits: &str, mark: char) -> String {
    let whole = whole_digits(digits);
    let mut out = String::new();
    for (i, c) in digits[..whole].chars().enumerate() {
        if i > 0 && (whole - i).is_multiple_of(3) {
            out.push(mark);
        }
        out.push(c);
    }
    out + &digits[whole..]
}

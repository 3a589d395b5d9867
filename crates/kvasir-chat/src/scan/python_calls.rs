//! Parser of Python-style tool calls (`[f(a=1)]`): literals become JSON arguments. Also accepts a
//! JSON call object.

use crate::scan::NamedCall;
use crate::scan::json_prefix::ScannedName;
use crate::scan::literals::LiteralReader;
use serde_json::{Map, Value};
use std::str::CharIndices;

/// Parses `text` as calls only: a list, a single call, `print(call)`, or a JSON object with name
/// and arguments. `None` if it is anything else.
pub(crate) fn calls(text: &str) -> Option<Vec<NamedCall>> {
    let text = text.trim();
    if text.starts_with('{') {
        let object: Value = serde_json::from_str(text).ok()?;
        let arguments = object.get("arguments").or_else(|| object.get("parameters"))?;
        return Some(vec![(object.get("name")?.as_str()?.to_owned(), arguments.clone())]);
    }
    let mut reader = Reader { rest: text };
    let is_list = reader.take('[');
    let mut calls = Vec::new();
    loop {
        calls.push(reader.call()?);
        let more =
            reader.take(',') || !is_list && reader.rest.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if !more {
            break;
        }
    }
    let ends = !is_list || reader.take(']');
    (ends && reader.rest.trim().is_empty()).then_some(calls)
}

/// Name of the function called at the start of `text`: `f(`.
pub(crate) fn named(text: &str) -> ScannedName {
    let mut reader = Reader { rest: text };
    let name = reader.name();
    reader.rest = reader.rest.trim_start();
    match name {
        _ if reader.rest.is_empty() => ScannedName::Incomplete,
        Some(name) if reader.rest.starts_with('(') => ScannedName::Name(name.to_owned()),
        _ => ScannedName::Other,
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> LiteralReader<'a> for Reader<'a> {
    fn rest(&mut self) -> &mut &'a str {
        &mut self.rest
    }

    fn literal(&mut self, depth: usize) -> Option<Value> {
        match self.rest.chars().next()? {
            '"' | '\'' => self.text().map(Value::from),
            '[' => self.items('[', ']', depth),
            '(' => self.items('(', ')', depth),
            '{' => self.map(depth),
            _ => match self.take_until(|c| c.is_whitespace() || ",)]}:".contains(c)) {
                "True" | "true" => Some(true.into()),
                "False" | "false" => Some(false.into()),
                "None" | "null" => Some(Value::Null),
                number => serde_json::from_str::<Value>(number).ok().filter(Value::is_number),
            },
        }
    }

    fn key(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        self.text()
    }
}

impl<'a> Reader<'a> {
    fn name(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let name = self.take_until(|c| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '-')));
        (!name.is_empty()).then_some(name)
    }

    fn call(&mut self) -> Option<(String, Value)> {
        let name = self.name()?;
        if !self.take('(') {
            return None;
        }
        if name == "print" {
            let call = self.call()?;
            let ends = self.take(')');
            self.rest = self.rest.trim_start();
            return ends.then_some(call);
        }
        let mut arguments = Map::new();
        while !self.take(')') {
            let key = self.name()?;
            if !self.take('=') {
                return None;
            }
            arguments.insert(key.to_owned(), self.value(0)?);
            if !self.take_separator(')') {
                return None;
            }
        }
        self.rest = self.rest.trim_start();
        Some((name.to_owned(), Value::Object(arguments)))
    }

    fn text(&mut self) -> Option<String> {
        let mut chars = self.rest.char_indices();
        let (_, quote) = chars.next().filter(|(_, c)| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    c @ ('\\' | '\'' | '"' | '/') => text.push(c),
                    'u' => text.push(unicode_escape(&mut chars)?),
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        None
    }
}

/// The character of a `\u` escape. JSON writes a character beyond the basic plane as a surrogate
/// pair; a lone surrogate becomes U+FFFD.
fn unicode_escape(chars: &mut CharIndices<'_>) -> Option<char> {
    let unit = |chars: &mut CharIndices<'_>| {
        let digits: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
        u32::from_str_radix(&digits, 16).ok()
    };
    let first = unit(chars)?;
    let mut ahead = chars.clone();
    let is_escape =
        ahead.next().is_some_and(|(_, c)| c == '\\') && ahead.next().is_some_and(|(_, c)| c == 'u');
    if let (0xd800..0xdc00, true, Some(second @ 0xdc00..0xe000)) = (first, is_escape, unit(&mut ahead)) {
        *chars = ahead;
        return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
    }
    Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals_become_json() {
        let text = r#"[a(x=1, y="it\'s", z=[1.5, True, None, {"k": ('v', 2)}]), b.c()]"#;
        let want = [
            ("a".to_owned(), json!({"x": 1, "y": "it's", "z": [1.5, true, null, {"k": ["v", 2]}]})),
            ("b.c".to_owned(), json!({})),
        ];
        assert_eq!(calls(text).unwrap(), want);
        assert_eq!(calls("print(f(a='x'))").unwrap(), [("f".to_owned(), json!({"a": "x"}))]);
        assert_eq!(
            calls(r#"{"name": "f", "parameters": {"a": 1}}"#).unwrap(),
            [("f".to_owned(), json!({"a": 1}))]
        );
    }

    #[test]
    fn escapes_are_those_of_json_too() {
        let text = r#"f(a="\b\f\u00e9\ud83d\ude00\ud83d!\q")"#;
        let want = json!({"a": "\u{8}\u{c}é\u{1f600}\u{fffd}!\\q"});
        assert_eq!(calls(text).unwrap(), [("f".to_owned(), want)]);
    }

    #[test]
    fn other_text_is_not_a_call() {
        let deep = format!("[f(a={}1{})]", "[".repeat(1000), "]".repeat(1000));
        for text in [
            "",
            "[]",
            "[1, 2]",
            "f(1)",
            "f(a=)",
            "f(a=1",
            "[f(a=1)] and",
            "f(a=b)",
            "{\"a\": 1}",
            deep.as_str(),
        ] {
            assert_eq!(calls(text), None, "{text}");
        }
    }
}

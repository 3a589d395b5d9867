//! Parser of Gemma 4's tool calls (`call:f{a:1,b:<|"|>text<|"|>}`): arguments become JSON.
//!
//! Strings are delimited by quote tokens and have no escapes. Keys are bare. JSON strings are
//! accepted as strings and keys as well, since a grammar may require them in nested values.

use crate::scan::NamedCall;
use crate::scan::literals::LiteralReader;
use serde_json::Value;

/// The token that starts and ends a string.
pub(crate) const QUOTE: &str = "<|\"|>";

/// Parses the text between the markers of one call. `None` if it is not a call.
pub(crate) fn calls(text: &str) -> Option<Vec<NamedCall>> {
    let text = text.trim().strip_prefix("call:")?;
    let (name, arguments) = text.split_at(text.find('{')?);
    let name = name.trim();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '"') {
        return None;
    }
    let mut reader = Reader { rest: arguments };
    let arguments = reader.map(0)?;
    reader.rest.trim().is_empty().then(|| vec![(name.to_owned(), arguments)])
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> LiteralReader<'a> for Reader<'a> {
    fn rest(&mut self) -> &mut &'a str {
        &mut self.rest
    }

    fn literal(&mut self, depth: usize) -> Option<Value> {
        if let Some(text) = self.quoted() {
            return Some(text.into());
        }
        match self.rest.chars().next()? {
            '"' => self.json_string().map(Value::from),
            '[' => self.items('[', ']', depth),
            '{' => self.map(depth),
            _ => serde_json::from_str(self.take_until(|c| c.is_whitespace() || ",]}".contains(c))).ok(),
        }
    }

    fn key(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        if let Some(text) = self.quoted() {
            return Some(text.to_owned());
        }
        if self.rest.starts_with('"') {
            return self.json_string();
        }
        let key = self.take_until(|c| c.is_whitespace() || ":,{}[]\"<>".contains(c));
        (!key.is_empty()).then(|| key.to_owned())
    }
}

impl<'a> Reader<'a> {
    /// A string between quote tokens.
    fn quoted(&mut self) -> Option<&'a str> {
        let (text, rest) = self.rest.strip_prefix(QUOTE)?.split_once(QUOTE)?;
        self.rest = rest;
        Some(text)
    }

    fn json_string(&mut self) -> Option<String> {
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = values.next()?.ok()?;
        self.rest = &self.rest[values.byte_offset()..];
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_become_json() {
        let text = r#"call:get{city:<|"|>Par"}{is<|"|>,n:2,deep:{on:true,list:[1.5,null,<|"|>a, b<|"|>]}}"#;
        let want = json!({"city": "Par\"}{is", "n": 2, "deep": {"on": true, "list": [1.5, null, "a, b"]}});
        assert_eq!(calls(text).unwrap(), [("get".to_owned(), want)]);
        assert_eq!(calls(" call:now{} ").unwrap(), [("now".to_owned(), json!({}))]);
        let quoted = r#"call:a.b{"x y": {"k": "v\n"}, z: ["q"]}"#;
        assert_eq!(calls(quoted).unwrap(), [("a.b".to_owned(), json!({"x y": {"k": "v\n"}, "z": ["q"]}))]);
    }

    #[test]
    fn other_text_is_not_a_call() {
        let deep = format!("call:f{{a:{}1{}}}", "[".repeat(1000), "]".repeat(1000));
        for text in [
            "",
            "call:f",
            "call:{}",
            "f{}",
            "call:f{a}",
            "call:f{a:}",
            "call:f{a:x}",
            "call:f{a:1",
            "call:f{} so",
            deep.as_str(),
        ] {
            assert_eq!(calls(text), None, "{text}");
        }
    }
}

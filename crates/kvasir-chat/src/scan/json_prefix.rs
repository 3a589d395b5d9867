//! Incremental scanner of incomplete JSON: finds the end of a value, and reads the head of a call
//! object.

/// Length of the JSON value at the start of `text` (which begins with `{` or `[`), and whether it
/// is complete.
pub(crate) fn extent(text: &str) -> (usize, bool) {
    let mut extent = Extent::default();
    let whole = extent.read(text);
    (extent.len, whole)
}

/// Resumable scan for the end of a JSON value that begins with `{` or `[`. Minds strings and
/// escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Bytes known to belong to the value.
    pub(crate) len: usize,
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Extent {
    /// Continues the scan; `text` must extend the previously scanned text. Returns whether the
    /// value is complete.
    pub(crate) fn read(&mut self, text: &str) -> bool {
        for byte in text.bytes().skip(self.len) {
            self.len += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                b'{' | b'[' if !self.quoted => self.depth += 1,
                b'}' | b']' if !self.quoted => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }
}

/// Classification of an object by its first keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// `{"name": "f", "arguments": {`: the name, and the offset of the inner object.
    Call(String, usize),
    /// Undecided: more text is needed.
    Incomplete,
    /// Not a call head.
    Other,
}

/// Result of reading a name at the start of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScannedName {
    /// A complete name.
    Name(String),
    /// Undecided: more text is needed.
    Incomplete,
    /// No name.
    Other,
}

/// The name of an object that begins with one: `{"name": "f"`.
pub(crate) fn named(text: &str) -> ScannedName {
    let mut rest = Cursor { text, at: 0 };
    let name = rest.expect("{").and_then(|()| rest.expect("\"name\"")).and_then(|()| rest.expect(":"));
    match name.and_then(|()| rest.string()) {
        Ok(name) => ScannedName::Name(name),
        Err(Mismatch) if rest.at >= text.len() => ScannedName::Incomplete,
        Err(Mismatch) => ScannedName::Other,
    }
}

/// Classifies the start of an object as a call head.
pub(crate) fn head(text: &str) -> Head {
    let mut rest = Cursor { text, at: 0 };
    match rest.head() {
        Ok(found) => found,
        Err(Mismatch) if rest.at >= text.len() => Head::Incomplete,
        Err(Mismatch) => Head::Other,
    }
}

/// The expected text is missing. The cursor is at the end of the text if more of it could
/// change that.
struct Mismatch;

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    fn head(&mut self) -> Result<Head, Mismatch> {
        self.expect("{")?;
        self.expect("\"name\"")?;
        self.expect(":")?;
        let name = self.string()?;
        self.expect(",")?;
        let before = self.at;
        if self.expect("\"arguments\"").is_err() {
            if self.at >= self.text.len() {
                return Err(Mismatch);
            }
            self.at = before;
            self.expect("\"parameters\"")?;
        }
        self.expect(":")?;
        self.expect("{")?;
        Ok(Head::Call(name, self.at - 1))
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn expect(&mut self, mark: &str) -> Result<(), Mismatch> {
        self.space();
        let rest = self.rest();
        if rest.starts_with(mark) {
            self.at += mark.len();
            return Ok(());
        }
        if mark.starts_with(rest) {
            self.at = self.text.len();
        }
        Err(Mismatch)
    }

    fn string(&mut self) -> Result<String, Mismatch> {
        self.space();
        let rest = self.rest();
        if !rest.is_empty() && !rest.starts_with('"') {
            return Err(Mismatch);
        }
        let mut escaped = false;
        let end = rest.bytes().enumerate().skip(1).find(|(_, byte)| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else {
            self.at = self.text.len();
            return Err(Mismatch);
        };
        let name = serde_json::from_str(&rest[..=end]).map_err(|_| Mismatch)?;
        self.at += end + 1;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_heads_are_detected_at_once() {
        let text = "{ \"name\" : \"a\\\"b\", \"parameters\": {\"x\": 1}}";
        let inner = text.find("{\"x").unwrap_or(0);
        for end in 0..text.len() {
            let want = if end <= inner { Head::Incomplete } else { Head::Call("a\"b".into(), inner) };
            assert_eq!(head(&text[..end]), want, "{}", &text[..end]);
        }
        for other in [
            "[",
            "{\"nome\"",
            "{\"name\": 3",
            "{\"name\": \"f\"}",
            "{\"name\": \"f\", \"arguments\": [",
            "{}",
        ] {
            assert_eq!(head(other), Head::Other, "{other}");
        }
    }

    #[test]
    fn names_are_detected_at_the_closing_quote() {
        let text = "{ \"name\": \"a\\\"b\"";
        for end in 0..text.len() {
            assert_eq!(named(&text[..end]), ScannedName::Incomplete, "{}", &text[..end]);
        }
        assert_eq!(named(&format!("{text}, ")), ScannedName::Name("a\"b".into()));
        for other in ["[", "{\"a\"", "{\"name\": 3", "{}"] {
            assert_eq!(named(other), ScannedName::Other, "{other}");
        }
    }

    #[test]
    fn extents_respect_strings() {
        assert_eq!(extent(r#"{"a": "}\"}", "b": [1]} x"#), (23, true));
        assert_eq!(extent(r#"{"a": "}"#), (8, false));
    }

    #[test]
    fn extents_do_not_depend_on_splits() {
        let text = r#"{"a\\\"": "}\"", "b": [1, {}]} x"#;
        let mut read = Extent::default();
        let ends: Vec<_> = (1..text.len()).take_while(|end| !read.read(&text[..*end])).collect();
        assert_eq!((read.len, ends.len() + 1), (extent(text).0, extent(text).0), "{text}");
    }
}

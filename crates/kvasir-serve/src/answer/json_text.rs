//! JSON that is not complete yet.

/// How much of `text`, which begins with `{` or `[`, belongs to that value; and whether its end is there.
pub(super) fn extent(text: &str) -> (usize, bool) {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => depth += 1,
            b'}' | b']' if !quoted => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return (i + 1, true);
                }
            }
            _ => {}
        }
    }
    (text.len(), false)
}

/// What the beginning of an object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// `{"name": "f", "arguments": {`: the name, and where the inner object begins.
    Call(String, usize),
    /// It may yet become that.
    Perhaps,
    /// It is something else.
    Other,
}

/// Reads the beginning of an object.
pub(super) fn head(text: &str) -> Head {
    let mut rest = Rest { text, at: 0 };
    match rest.head() {
        Ok(found) => found,
        Err(Missing) if rest.at >= text.len() => Head::Perhaps,
        Err(Missing) => Head::Other,
    }
}

/// What was looked for is not here; the reader stands at the end of the text if more of it could change that.
struct Missing;

struct Rest<'a> {
    text: &'a str,
    at: usize,
}

impl Rest<'_> {
    fn head(&mut self) -> Result<Head, Missing> {
        self.expect("{")?;
        self.expect("\"name\"")?;
        self.expect(":")?;
        let name = self.string()?;
        self.expect(",")?;
        let before = self.at;
        if self.expect("\"arguments\"").is_err() {
            if self.at >= self.text.len() {
                return Err(Missing);
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

    fn expect(&mut self, mark: &str) -> Result<(), Missing> {
        self.space();
        let rest = self.rest();
        if rest.starts_with(mark) {
            self.at += mark.len();
            return Ok(());
        }
        if mark.starts_with(rest) {
            self.at = self.text.len();
        }
        Err(Missing)
    }

    fn string(&mut self) -> Result<String, Missing> {
        self.space();
        let rest = self.rest();
        if !rest.is_empty() && !rest.starts_with('"') {
            return Err(Missing);
        }
        let mut escaped = false;
        let end = rest.bytes().enumerate().skip(1).find(|(_, byte)| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else {
            self.at = self.text.len();
            return Err(Missing);
        };
        let name = serde_json::from_str(&rest[..=end]).map_err(|_| Missing)?;
        self.at += end + 1;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_known_as_soon_as_it_is_there() {
        let text = "{ \"name\" : \"a\\\"b\", \"parameters\": {\"x\": 1}}";
        let inner = text.find("{\"x").unwrap_or(0);
        for end in 0..text.len() {
            let want = if end <= inner { Head::Perhaps } else { Head::Call("a\"b".into(), inner) };
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
    fn an_extent_minds_strings() {
        assert_eq!(extent(r#"{"a": "}\"}", "b": [1]} x"#), (23, true));
        assert_eq!(extent(r#"{"a": "}"#), (8, false));
    }
}

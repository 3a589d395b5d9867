//! Converts EBNF grammars (`root ::= "a" rule [0-9]+`, as llama.cpp's GBNF and XGrammar write them)
//! to Lark's notation for llguidance.

use std::fmt::Write;

/// Whether a grammar is in EBNF: some line begins with `name ::=`.
pub(crate) fn is_ebnf(text: &str) -> bool {
    let mut lines = text.lines().map(|line| line.trim_start());
    lines.any(|line| {
        let name = line.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        name.len() < line.len() && name.trim_start().starts_with("::=")
    })
}

/// Converts EBNF to Lark; `root` becomes `start`. Errors name the line.
pub(crate) fn to_lark(text: &str) -> Result<String, String> {
    let mut reader = Reader { rest: text, line: 1 };
    let mut out = String::new();
    let mut names = Vec::new();
    loop {
        let pieces = reader.piece()?;
        match pieces {
            None => break,
            Some(Piece::Rule(name)) => {
                if names.contains(&name) {
                    return Err(reader.error(&format!("rule `{name}` occurs twice")));
                }
                let _ = write!(out, "\n{}:", rule_name(&name));
                names.push(name);
            }
            Some(_) if names.is_empty() => return Err(reader.error("a rule must come first")),
            Some(Piece::Name(name)) => out += &format!(" {}", rule_name(&name)),
            Some(Piece::Text(text)) => out += &format!(" {text}"),
            // A repetition suffix attaches to the preceding item.
            Some(Piece::Suffix(text)) => out += &text,
        }
    }
    if names.iter().any(|name| name == "root") { Ok(out) } else { Err("has no rule `root`".into()) }
}

/// Lark rule names are lower case without dashes. The encoding is injective, so names that differ
/// only in these stay distinct.
fn rule_name(name: &str) -> String {
    if name == "root" {
        return "start".into();
    }
    let mut out = String::from("r_");
    for c in name.chars() {
        match c {
            '-' => out += "_d_",
            'A'..='Z' => {
                let _ = write!(out, "_u{}", c.to_ascii_lowercase());
            }
            c => out.push(c),
        }
    }
    out
}

enum Piece {
    /// `name ::=`
    Rule(String),
    Name(String),
    Text(String),
    Suffix(String),
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    fn error(&self, why: &str) -> String {
        format!("line {}: {why}", self.line)
    }

    fn take(&mut self, bytes: usize) -> &str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn skip_space(&mut self) {
        loop {
            let space = self.rest.len() - self.rest.trim_start().len();
            self.take(space);
            if !self.rest.starts_with('#') {
                return;
            }
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn piece(&mut self) -> Result<Option<Piece>, String> {
        self.skip_space();
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '"' => Piece::Text(self.quoted('"')?),
            '\'' => Piece::Text(self.quoted('\'')?),
            '[' => Piece::Text(self.class()?),
            '(' | ')' | '|' => Piece::Text(self.take(1).to_owned()),
            '.' => {
                self.take(1);
                Piece::Text("/(?s:.)/".into())
            }
            '*' | '+' | '?' => Piece::Suffix(self.take(1).to_owned()),
            '{' => Piece::Suffix(self.count()?),
            c if c.is_ascii_alphanumeric() || c == '_' => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
                let name = self.take(end).to_owned();
                let after = self.rest.trim_start();
                match after.strip_prefix("::=") {
                    Some(body) => {
                        self.take(self.rest.len() - body.len());
                        Piece::Rule(name)
                    }
                    None => Piece::Name(name),
                }
            }
            c => return Err(self.error(&format!("`{c}` is unexpected"))),
        }))
    }

    /// Parses a quoted string; returns it as a JSON string literal.
    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.take(at + 1);
                    return Ok(serde_json::Value::from(text).to_string());
                }
                '\\' => {
                    let escape = chars.next().map(|(_, c)| c);
                    text.push(match escape {
                        Some('n') => '\n',
                        Some('r') => '\r',
                        Some('t') => '\t',
                        Some('x') => self.by_number(&mut chars, 2)?,
                        Some('u') => self.by_number(&mut chars, 4)?,
                        Some(c @ ('"' | '\'' | '\\' | '/' | '[' | ']')) => c,
                        _ => return Err(self.error("a quoted text has an unknown escape")),
                    });
                }
                c => text.push(c),
            }
        }
        Err(self.error("a quoted text has no end"))
    }

    fn by_number(
        &self,
        chars: &mut impl Iterator<Item = (usize, char)>,
        digits: usize,
    ) -> Result<char, String> {
        let text: String = chars.take(digits).map(|(_, c)| c).collect();
        let number = u32::from_str_radix(&text, 16).ok().filter(|_| text.len() == digits);
        number.and_then(char::from_u32).ok_or_else(|| self.error("an escape names no character"))
    }

    /// Parses a character class `[a-z]`; returns it as a Lark regular expression.
    fn class(&mut self) -> Result<String, String> {
        let mut escaped = false;
        let end = self.rest.char_indices().skip(1).find(|(_, c)| {
            let ends = *c == ']' && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else { return Err(self.error("`[` has no end")) };
        let class = self.take(end + 1);
        let inner = &class[1..class.len() - 1];
        // A `[` inside a class is special in a regular expression, so it is escaped.
        let inner = inner.replace('[', "\\[").replace("\\\\[", "\\[");
        Ok(format!("/[{}]/", llguidance::regex_to_lark(&inner, "")))
    }

    /// Parses a repetition count: `{2}`, `{2,}`, `{2,5}`.
    fn count(&mut self) -> Result<String, String> {
        let end = self.rest.find('}').ok_or_else(|| self.error("`{` has no end"))?;
        let text: String = self.take(end + 1).chars().filter(|c| !c.is_whitespace()).collect();
        let inner = &text[1..text.len() - 1];
        let number = |text: &str| text.parse::<u32>().is_ok_and(|n| n <= 4096);
        let fits = match inner.split_once(',') {
            None => number(inner),
            Some((low, high)) => (low.is_empty() || number(low)) && (high.is_empty() || number(high)),
        };
        if fits && inner != "," {
            Ok(text)
        } else {
            Err(self.error(&format!("`{text}` is no count up to 4096")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ebnf_is_translated_to_lark() {
        let text = "# sums\nroot ::= Term-1 (\" + \" Term-1)*  # end\nTerm-1 ::= [0-9]{1,3} | 'x\\'y' |\n  [^\\]/]+ .";
        assert!(is_ebnf(text));
        let lark = to_lark(text).unwrap();
        assert_eq!(
            lark,
            "\nstart: r__uterm_d_1 ( \" + \" r__uterm_d_1 )*\nr__uterm_d_1: /[0-9]/{1,3} | \"x'y\" | /[^\\]\\/]/+ /(?s:.)/"
        );
        assert!(!is_ebnf("start: \"a\" b\nb: /x ::= y/"));
    }

    #[test]
    fn errors_name_the_line() {
        let refused = |text: &str| to_lark(text).unwrap_err();
        assert!(refused("root ::= \"a\nb").contains("line 1"));
        assert!(refused("root ::= \"a\"\n\nb ::= [x").contains("line 3"));
        assert!(refused("a ::= b").contains("root"));
        assert!(refused("root ::= \"a\"{1,99999}").contains("4096"));
        assert!(refused("root ::= \"a\"{,}").contains("4096"));
        assert!(refused("\"a\" root ::= b").contains("first"));
        assert!(refused("root ::= a ; b").contains("`;`"));
        assert!(refused("root ::= \"a\"\nroot ::= \"b\"").contains("twice"));
    }
}

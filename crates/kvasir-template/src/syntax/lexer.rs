//! Tokenizes template source with Jinja's white space control.
//!
//! `trim_blocks` and `lstrip_blocks` are on, as in Transformers.

use crate::error::{Run, TemplateError};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Data(String),
    BlockBegin,
    BlockEnd,
    VarBegin,
    VarEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    Eof,
}

const OPERATORS: [&str; 26] = [
    "==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    out: Vec<(Token, usize)>,
    /// Whether the last consumed text ended a line.
    line_starting: bool,
}

/// The tokens with their lines; `Eof` is last.
pub(crate) fn lex(source: &str) -> Run<Vec<(Token, usize)>> {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop(); // Jinja drops one final newline
    }
    let mut lexer = Lexer { text: &text, at: 0, line: 1, out: Vec::new(), line_starting: true };
    lexer.run()?;
    let line = lexer.line;
    lexer.out.push((Token::Eof, line));
    Ok(lexer.out)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.text[self.at..self.at + bytes];
        self.line += passed.matches('\n').count();
        if !passed.is_empty() {
            self.line_starting = passed.ends_with('\n');
        }
        self.at += bytes;
    }

    fn fail<T>(&self, why: impl Into<String>) -> Run<T> {
        Err(TemplateError::at(self.line, why))
    }

    fn push(&mut self, token: Token) {
        self.out.push((token, self.line));
    }

    fn run(&mut self) -> Run<()> {
        while !self.rest().is_empty() {
            let Some(tag) = next_tag(self.rest()) else {
                let data = self.rest();
                self.push(Token::Data(data.to_owned()));
                self.advance(data.len());
                break;
            };
            let data = &self.rest()[..tag];
            let kind = self.rest().as_bytes()[tag + 1];
            let sign = self.rest().as_bytes().get(tag + 2).copied();
            let kept = self.strip_before(data, kind, sign);
            if !kept.is_empty() {
                self.push(Token::Data(kept.to_owned()));
            }
            self.advance(tag);
            match kind {
                b'#' => self.comment()?,
                b'{' => self.tag(Token::VarBegin, "}}")?,
                _ => match raw_begin(self.rest()) {
                    Some(len) => self.raw(len)?,
                    None => self.tag(Token::BlockBegin, "%}")?,
                },
            }
        }
        Ok(())
    }

    /// The text before a tag, after left stripping.
    fn strip_before(&self, data: &'a str, kind: u8, sign: Option<u8>) -> &'a str {
        match sign {
            Some(b'-') => data.trim_end_matches(python_space),
            Some(b'+') => data,
            _ if kind == b'{' => data,
            _ => {
                let line = data.rfind('\n').map_or(0, |n| n + 1);
                let whole_line = line > 0 || self.line_starting;
                if whole_line && data[line..].chars().all(python_space) { &data[..line] } else { data }
            }
        }
    }

    fn comment(&mut self) -> Run<()> {
        let Some(end) = self.rest().get(2..).and_then(|r| r.find("#}")) else {
            return self.fail("a comment does not end");
        };
        let inside = &self.rest()[..2 + end];
        let sign = inside[2..].chars().next_back();
        self.advance(inside.len() + 2);
        self.after_block(sign);
        Ok(())
    }

    /// Strips white space after a block or comment: all after `-`, none after `+`, else one
    /// newline.
    fn after_block(&mut self, sign: Option<char>) {
        match sign {
            Some('-') => {
                let rest = self.rest();
                self.advance(rest.len() - rest.trim_start_matches(python_space).len());
            }
            Some('+') => {}
            _ if self.rest().starts_with('\n') => self.advance(1),
            _ => {}
        }
    }

    fn raw(&mut self, begin: usize) -> Run<()> {
        self.advance(begin);
        let mut from = 0;
        loop {
            let Some(tag) = self.rest()[from..].find("{%").map(|t| t + from) else {
                return self.fail("a raw block does not end");
            };
            let inner = &self.rest()[tag + 2..];
            let sign = inner.chars().next().filter(|c| matches!(c, '-' | '+'));
            let body = inner[sign.map_or(0, char::len_utf8)..].trim_start_matches(python_space);
            let Some(after) = body.strip_prefix("endraw").map(|b| b.trim_start_matches(python_space)) else {
                from = tag + 2;
                continue;
            };
            let (end_sign, after) = match after.chars().next() {
                Some(c @ ('-' | '+')) => (Some(c), &after[1..]),
                _ => (None, after),
            };
            if !after.starts_with("%}") {
                from = tag + 2;
                continue;
            }
            let data = &self.rest()[..tag];
            let kept = self.strip_before(data, b'%', sign.and_then(|c| u8::try_from(c).ok()));
            if !kept.is_empty() {
                self.push(Token::Data(kept.to_owned()));
            }
            let length = self.rest().len() - after.len() + 2;
            self.advance(length);
            self.after_block(end_sign);
            return Ok(());
        }
    }

    fn tag(&mut self, begin: Token, end: &'static str) -> Run<()> {
        let closing = if end == "%}" { Token::BlockEnd } else { Token::VarEnd };
        self.push(begin);
        self.advance(2);
        if self.rest().starts_with(['-', '+']) {
            self.advance(1);
        }
        let mut brackets = Vec::new();
        loop {
            let rest = self.rest();
            self.advance(rest.len() - rest.trim_start_matches(python_space).len());
            let rest = self.rest();
            if rest.is_empty() {
                return self.fail("a tag does not end");
            }
            if brackets.is_empty() {
                let sign = rest.chars().next().filter(|&c| c == '-' || (c == '+' && end == "%}"));
                if rest[sign.map_or(0, char::len_utf8)..].starts_with(end) {
                    self.push(closing);
                    self.advance(2 + sign.map_or(0, char::len_utf8));
                    if end == "%}" || sign == Some('-') {
                        self.after_block(sign);
                    }
                    return Ok(());
                }
            }
            self.token(&mut brackets)?;
        }
    }

    fn token(&mut self, brackets: &mut Vec<&'static str>) -> Run<()> {
        let rest = self.rest();
        let first = rest.chars().next().unwrap_or(' ');
        if first.is_alphabetic() || first == '_' {
            let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            self.push(Token::Name(rest[..len].to_owned()));
            self.advance(len);
        } else if first.is_ascii_digit() {
            let (token, len) = number(rest).map_or_else(|why| self.fail(why), Ok)?;
            self.push(token);
            self.advance(len);
        } else if matches!(first, '"' | '\'') {
            let (text, len) = string(rest).map_or_else(|why| self.fail(why), Ok)?;
            self.push(Token::Str(text));
            self.advance(len);
        } else {
            let Some(op) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) else {
                return self.fail(format!("unexpected character {first:?}"));
            };
            match op {
                "(" => brackets.push(")"),
                "[" => brackets.push("]"),
                "{" => brackets.push("}"),
                ")" | "]" | "}" if brackets.pop() != Some(op) => {
                    return self.fail(format!("unexpected {op:?}"));
                }
                _ => {}
            }
            self.push(Token::Op(op));
            self.advance(op.len());
        }
        Ok(())
    }
}

/// Byte index of the next tag.
fn next_tag(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|w| matches!(w, b"{{" | b"{%" | b"{#"))
}

/// Length of a leading `{% raw %}` tag, if present.
fn raw_begin(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("{%")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.trim_start_matches(python_space).strip_prefix("raw")?.trim_start_matches(python_space);
    let rest = match inner.strip_prefix("-%}") {
        Some(rest) => rest.trim_start_matches(python_space),
        None => inner.strip_prefix("%}")?,
    };
    Some(text.len() - rest.len())
}

fn number(text: &str) -> Result<(Token, usize), String> {
    let digits = |from: usize, ok: fn(&char) -> bool| {
        text[from..].find(|c: char| !(ok(&c) || c == '_')).map_or(text.len(), |n| n + from)
    };
    let radix = match text.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    if radix != 10 {
        let end = digits(2, char::is_ascii_alphanumeric);
        let value = i128::from_str_radix(&text[2..end].replace('_', ""), radix);
        return value.map(|v| (Token::Int(v), end)).map_err(|e| e.to_string());
    }
    let whole = digits(0, char::is_ascii_digit);
    let mut end = whole;
    let bytes = text.as_bytes();
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end = digits(end + 1, char::is_ascii_digit);
    }
    if bytes.get(end).is_some_and(|b| matches!(b, b'e' | b'E')) {
        let sign = usize::from(bytes.get(end + 1).is_some_and(|b| matches!(b, b'+' | b'-')));
        if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            end = digits(end + 1 + sign, char::is_ascii_digit);
        }
    }
    let clean = text[..end].replace('_', "");
    if end == whole {
        clean.parse().map(|v| (Token::Int(v), end)).map_err(|e| format!("{clean}: {e}"))
    } else {
        clean.parse().map(|v| (Token::Float(v), end)).map_err(|e| format!("{clean}: {e}"))
    }
}

/// A quoted string literal with Python's escapes.
fn string(text: &str) -> Result<(String, usize), String> {
    let quote = text.chars().next().unwrap_or('"');
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((i, c)) = chars.next() {
        if c == quote {
            return Ok((out, i + 1));
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some((_, escape)) = chars.next() else { break };
        let hex = |chars: &mut dyn Iterator<Item = (usize, char)>, n: usize| {
            let digits: String = chars.take(n).map(|(_, c)| c).collect();
            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == n);
            code.and_then(char::from_u32).ok_or_else(|| format!("bad escape \\{escape}{digits}"))
        };
        match escape {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'v' => out.push('\x0b'),
            '\n' => {}
            '\\' | '\'' | '"' => out.push(escape),
            'x' => out.push(hex(&mut chars, 2)?),
            'u' => out.push(hex(&mut chars, 4)?),
            'U' => out.push(hex(&mut chars, 8)?),
            '0'..='7' => {
                let mut code = escape.to_digit(8).unwrap_or(0);
                let mut ahead = chars.clone();
                for _ in 0..2 {
                    let Some(digit) = ahead.next().and_then(|(_, c)| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    chars.next();
                }
                out.push(char::from_u32(code).unwrap_or('\0'));
            }
            other => out.extend(['\\', other]),
        }
    }
    Err("a string does not end".into())
}

/// White space as defined by Python's `str.isspace` and `\s`.
pub(crate) fn python_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

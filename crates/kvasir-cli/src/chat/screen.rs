//! Output of `kvasir chat`: model output to stdout, notes to stderr, with ANSI colors on terminals.

use rustix::{stdio::stderr, termios::tcgetwinsize};
use std::io::{self, IsTerminal, Write};
use unicode_width::UnicodeWidthStr;

/// Columns of a terminal that does not tell its size.
const COLUMNS: usize = 80;

/// Whether the terminal interprets no escape sequences: `TERM` is `dumb`, empty or not set.
pub(super) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Writer of chat output. Colors only on terminals that are not dumb, and not with `NO_COLOR`.
pub(crate) struct Screen {
    color_out: bool,
    color_err: bool,
    /// Whether stdout is at the start of a line.
    at_start: bool,
}

/// Text style.
#[derive(Clone, Copy)]
enum Look {
    Plain,
    Dim,
    Bold,
    Red,
    Call,
}

impl Look {
    fn codes(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
            Self::Red => "\x1b[31m",
            Self::Call => "\x1b[36m",
        }
    }

    fn paint(self, text: &str, colors: bool) -> String {
        if colors && !matches!(self, Self::Plain) {
            format!("{}{text}\x1b[0m", self.codes())
        } else {
            text.to_owned()
        }
    }
}

impl Screen {
    /// Detects which streams are terminals.
    pub(super) fn new() -> Self {
        let wanted = !is_dumb() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            color_out: wanted && io::stdout().is_terminal(),
            color_err: wanted && io::stderr().is_terminal(),
            at_start: true,
        }
    }

    fn out(&mut self, text: &str, look: Look) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.at_start = text.ends_with('\n');
        let mut out = io::stdout().lock();
        out.write_all(look.paint(text, self.color_out).as_bytes())?;
        out.flush()
    }

    /// Writes answer text.
    pub(super) fn answer(&mut self, text: &str) -> io::Result<()> {
        self.out(text, Look::Plain)
    }

    /// Writes reasoning text, to stderr: it is not part of the answer.
    pub(super) fn reasoning(&mut self, text: &str) {
        self.err(text, Look::Dim);
    }

    /// Writes a fragment of a tool call.
    pub(super) fn called(&mut self, text: &str) -> io::Result<()> {
        self.out(text, Look::Call)
    }

    /// Ends an open line on stdout.
    pub(super) fn end_line(&mut self) -> io::Result<()> {
        if self.at_start { Ok(()) } else { self.out("\n", Look::Plain) }
    }

    fn err(&self, text: &str, look: Look) {
        let text = look.paint(text, self.color_err);
        // A broken stderr cannot be reported.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// Writes a note, wrapped at words to the terminal's width.
    pub(super) fn note(&self, text: &str) {
        for line in text.split('\n') {
            if columns(line) < self.width() {
                self.err(line, Look::Dim)
            } else {
                self.err(&wrapped(line, self.width() - 1).join("\n"), Look::Dim)
            }
            self.err("\n", Look::Plain);
        }
    }

    /// Writes a line with a leading name.
    pub(super) fn entry(&self, name: &str, text: &str) {
        self.entries(&[(name.to_owned(), text.to_owned())]);
    }

    /// Writes several named lines. If one exceeds the terminal's width, texts go below their names.
    pub(super) fn entries(&self, entries: &[(String, String)]) {
        let fits = |(name, text): &(String, String)| columns(name) + 2 + columns(text) < self.width();
        let beside = entries.iter().all(fits);
        for (name, text) in entries {
            if beside {
                self.err(name, Look::Bold);
                self.err(&format!("  {text}\n"), Look::Dim);
                continue;
            }
            self.err(name.trim_end(), Look::Bold);
            wrapped(text, self.width() - 3).iter().for_each(|row| self.err(&format!("\n  {row}"), Look::Dim));
            self.err("\n", Look::Plain);
        }
    }

    /// Width of the terminal on stderr; unlimited without one.
    fn width(&self) -> usize {
        if !io::stderr().is_terminal() {
            return usize::MAX;
        }
        let columns = tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col));
        if columns == 0 { COLUMNS } else { columns.max(8) }
    }

    /// Writes an error.
    pub(super) fn wrong(&self, text: &str) {
        self.err(text, Look::Red);
        self.err("\n", Look::Plain);
    }

    /// Writes a blank line on terminals.
    pub(super) fn space(&self) {
        if io::stderr().is_terminal() {
            self.err("\n", Look::Plain);
        }
    }
}

/// Display width of a text.
fn columns(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Wraps a text at words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match rows.last_mut() {
            Some(row) if columns(row) + 1 + columns(word) <= width => *row += &format!(" {word}"),
            _ => rows.push(word.to_owned()),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_breaks_between_words() {
        let text = "go on in a copy that ends before the last N questions";
        assert_eq!(wrapped(text, 24), ["go on in a copy that", "ends before the last N", "questions"]);
        assert_eq!(wrapped("overlong one", 4), ["overlong", "one"], "a word stays whole");
        assert_eq!(wrapped(text, usize::MAX), [text]);
    }
}

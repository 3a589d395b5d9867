//! Input of `kvasir chat`: a line editor on a terminal, or lines from a pipe. Parses multi-line
//! texts.

use crate::chat::command::COMMANDS;
use crate::chat::editor::{Keys, LineEditor, Words, Written};
use crate::chat::screen::is_dumb;
use crate::io::failure::Failure;
use std::{
    io::{self, BufRead, IsTerminal},
    path::PathBuf,
};

/// Fence around a multi-line text.
const FENCE: &str = "\"\"\"";

/// Source of questions.
pub(crate) enum Input {
    /// An interactive terminal.
    Person(Box<LineEditor<Slash>>),
    /// A pipe or a file: one question per line, without prompts.
    Pipe,
}

/// One input.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    Text(String),
    /// Ctrl-C while editing: discard the line.
    Nothing,
    End,
}

impl Input {
    /// Uses the terminal if there is one. With `remember`, history is stored in the user's state
    /// folder.
    pub(super) fn new(remember: bool, keys: Keys) -> Result<Self, Failure> {
        if is_dumb() || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Ok(Self::Pipe);
        }
        let file = state_folder().filter(|_| remember).map(|folder| folder.join("chat-history"));
        let editor = LineEditor::new(Slash, file, keys);
        Ok(Self::Person(Box::new(editor.map_err(|error| Failure::failed(format!("terminal: {error}")))?)))
    }

    /// Whether the input is interactive.
    pub(super) fn is_person(&self) -> bool {
        matches!(self, Self::Person(_))
    }

    /// Whether the user agrees; Enter does, and a pipe never.
    pub(super) fn confirm(&mut self, question: &str) -> Result<bool, Failure> {
        let Self::Person(editor) = self else { return Ok(false) };
        let written = editor.read_once(&format!("{question} [Y/n] "));
        let written = written.map_err(|error| Failure::failed(format!("terminal: {error}")))?;
        Ok(matches!(&written, Written::Text(text) if is_yes(text)))
    }

    /// Reads the next text, which may span several lines.
    pub(super) fn read(&mut self, prompt: &str) -> Result<Line, Failure> {
        match self {
            Self::Pipe => read_lines(&mut io::stdin().lock()),
            Self::Person(editor) => {
                let written = editor.read(prompt);
                Ok(match written.map_err(|error| Failure::failed(format!("terminal: {error}")))? {
                    Written::Text(text) => Line::Text(unfenced(&joined(text))),
                    Written::Interrupted => Line::Nothing,
                    Written::End => Line::End,
                })
            }
        }
    }
}

/// Whether an answer to a question is yes, which is the default.
fn is_yes(text: &str) -> bool {
    ["", "y", "yes"].contains(&text.trim().to_lowercase().as_str())
}

/// `$XDG_STATE_HOME/kvasir`, or its default under the home folder.
fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("kvasir"))
}

fn read_lines(stdin: &mut impl BufRead) -> Result<Line, Failure> {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        if stdin.read_line(&mut line).map_err(|error| Failure::failed(format!("stdin: {error}")))? == 0 {
            return Ok(if text.is_empty() { Line::End } else { Line::Text(unfenced(&text)) });
        }
        text.push_str(line.trim_end_matches(['\n', '\r']));
        let Some(kept) = continued(&text) else { return Ok(Line::Text(unfenced(&text))) };
        text.truncate(kept.len());
        text.push('\n');
    }
}

/// The part to keep of a text that continues on the next line: inside a fence, or before a trailing
/// backslash.
fn continued(text: &str) -> Option<&str> {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => (!rest.trim_end().ends_with(FENCE)).then_some(text),
        None => text.strip_suffix('\\'),
    }
}

/// Removes the backslashes that continued lines of a text without a fence.
fn joined(text: String) -> String {
    if text.trim_start().starts_with(FENCE) { text } else { text.replace("\\\n", "\n") }
}

/// Strips the fence of a multi-line text.
fn unfenced(text: &str) -> String {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => {
            let rest = rest.trim_end();
            rest.strip_suffix(FENCE).unwrap_or(rest).trim_matches('\n').to_owned()
        }
        None => text.trim().to_owned(),
    }
}

/// Editor rules for slash commands and multi-line texts.
pub(crate) struct Slash;

impl Words for Slash {
    fn completions(&self, text: &str) -> Vec<String> {
        let names = COMMANDS.iter().map(|(name, ..)| *name);
        names.filter(|name| text.starts_with('/') && name.starts_with(text)).map(str::to_owned).collect()
    }

    fn hint(&self, text: &str) -> Option<String> {
        if let Some((_, arguments, what)) = COMMANDS.iter().find(|(name, ..)| *name == text) {
            let space = if arguments.is_empty() { "" } else { " " };
            return Some(format!("{space}{arguments}   {what}"));
        }
        let names = self.completions(text);
        (!names.is_empty()).then(|| format!("   {}", names.join(" ")))
    }

    fn is_continued(&self, text: &str) -> bool {
        continued(text).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<String> {
        let mut stdin = text.as_bytes();
        std::iter::from_fn(|| match read_lines(&mut stdin).unwrap() {
            Line::Text(text) => Some(text),
            Line::Nothing | Line::End => None,
        })
        .collect()
    }

    #[test]
    fn continued_lines_lose_their_backslashes_outside_fences() {
        assert!(Slash.is_continued("one \\") && !Slash.is_continued("one\ntwo"));
        assert_eq!(joined("one \\\ntwo".into()), "one \ntwo");
        assert_eq!(joined("\"\"\"\na\\\nb\n\"\"\"".into()), "\"\"\"\na\\\nb\n\"\"\"");
    }

    #[test]
    fn several_lines_are_one_text_if_they_say_so() {
        assert_eq!(all("one\r\ntwo"), ["one", "two"]);
        assert_eq!(all("one \\\ntwo\\\nthree\nfour\n"), ["one \ntwo\nthree", "four"]);
        assert_eq!(all("\"\"\"\n a\n\n b\n\"\"\"\nc\n"), [" a\n\n b", "c"]);
        assert_eq!(all("\"\"\"\na \\\nb\\\n\"\"\"\n"), ["a \\\nb\\"]);
        assert_eq!(all("\"\"\"open\nto the end"), ["open\nto the end"]);
    }
}

//! Multi-line line editor with history, completion and hints, for `kvasir chat`.

pub(crate) mod draft;
pub(crate) mod history;
pub(crate) mod key;
pub(crate) mod paint;
pub(crate) mod terminal;

use crate::chat::editor::draft::Draft;
use crate::chat::editor::history::History;
use crate::chat::editor::key::{Key, decode};
use crate::chat::terminal::Raw;
use std::{
    fmt::Write as _,
    io::{self, Write},
    path::PathBuf,
};

/// Completion, hint and continuation rules of the input language.
pub(crate) trait Words {
    /// All completions of this text.
    fn completions(&self, text: &str) -> Vec<String>;
    /// Hint to display after this text.
    fn hint(&self, text: &str) -> Option<String>;
    /// If Enter continues the text on another line: the part to keep (all, or all but a
    /// continuation character).
    fn continued<'t>(&self, text: &'t str) -> Option<&'t str>;
}

/// Result of editing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D on an empty line, or the terminal was closed.
    End,
}

/// The line editor.
pub(crate) struct Editor<W> {
    words: W,
    history: History,
    /// Row of the cursor relative to the first painted row.
    row: usize,
}

impl<W: Words> Editor<W> {
    /// An editor whose history is stored in `file`, if given.
    pub(super) fn new(words: W, file: Option<PathBuf>) -> Self {
        Self { words, history: History::open(file), row: 0 }
    }

    /// Reads one text interactively, in raw mode.
    pub(super) fn read(&mut self, prompt: &str) -> io::Result<Written> {
        let _raw = Raw::enter()?;
        let mut draft = Draft::default();
        self.row = 0;
        loop {
            let hint = self.hint(&draft);
            self.paint(prompt, &draft, &hint)?;
            let Some(first) = terminal::byte()? else { return self.leave(prompt, &draft, Written::End) };
            match decode(first, &mut terminal::byte_in) {
                Key::Enter => {
                    if let Some(kept) = self.words.continued(draft.text()).map(str::len) {
                        if kept < draft.text().len() && draft.cursor() == draft.text().len() {
                            draft.backspace();
                        }
                        draft.insert("\n");
                        continue;
                    }
                    if !draft.text().trim().is_empty() {
                        self.history.push(draft.text());
                    }
                    let written = Written::Text(draft.text().to_owned());
                    return self.leave(prompt, &draft, written);
                }
                Key::Interrupt => return self.leave(prompt, &draft, Written::Interrupted),
                Key::EndOfInput if draft.text().is_empty() => {
                    return self.leave(prompt, &draft, Written::End);
                }
                Key::Clear => {
                    self.row = 0;
                    io::stderr().write_all(b"\x1b[2J\x1b[H")?;
                }
                key => self.press(key, &mut draft),
            }
        }
    }

    fn press(&mut self, key: Key, draft: &mut Draft) {
        match key {
            Key::Char(c) => draft.insert(c.encode_utf8(&mut [0; 4])),
            Key::Paste(text) => draft.insert(&text),
            Key::NewLine => draft.insert("\n"),
            Key::Tab => self.complete(draft),
            Key::Backspace => draft.backspace(),
            Key::Delete | Key::EndOfInput => draft.delete(),
            Key::Left => draft.left(),
            Key::Right => draft.right(),
            Key::Home => draft.home(),
            Key::End => draft.end(),
            Key::WordLeft => draft.word_left(),
            Key::WordRight => draft.word_right(),
            Key::DeleteWord => draft.delete_word(),
            Key::DeleteToStart => draft.delete_to_start(),
            Key::DeleteToEnd => draft.delete_to_end(),
            Key::Up if !draft.up() => {
                if let Some(text) = self.history.back(draft.text()) {
                    *draft = Draft::new(text);
                }
            }
            Key::Down if !draft.down() => {
                if let Some(text) = self.history.forward() {
                    *draft = Draft::new(text);
                }
            }
            // Other keys have been handled or have no function.
            _ => {}
        }
    }

    /// Inserts the longest common prefix of all completions.
    fn complete(&self, draft: &mut Draft) {
        let all = self.words.completions(draft.text());
        let Some((first, others)) = all.split_first() else { return };
        let same = others.iter().fold(first.as_str(), |same, other| {
            let common = same.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            same.get(..common).unwrap_or_default()
        });
        if same.len() > draft.text().len() {
            *draft = Draft::new(same);
        }
    }

    fn hint(&self, draft: &Draft) -> String {
        let at_end = draft.cursor() == draft.text().len();
        if at_end { self.words.hint(draft.text()).unwrap_or_default() } else { String::new() }
    }

    fn paint(&mut self, prompt: &str, draft: &Draft, hint: &str) -> io::Result<()> {
        let (width, height) = terminal::size();
        let painting = paint::lay_out(prompt, draft.text(), draft.cursor(), width).clipped(height);
        let room = width.saturating_sub(painting.cursor.1 + 1);
        // Overwrite, then erase the remainder: erasing first flickers, and some terminals save a
        // fully erased screen to their scrollback.
        let mut out = self.rewind();
        for (i, row) in painting.rows.iter().enumerate() {
            out.push_str(if i > 0 { "\x1b[K\r\n" } else { "" });
            match row.strip_prefix(prompt).filter(|_| i == 0) {
                Some(text) => {
                    let _ = write!(out, "\x1b[1;36m{prompt}\x1b[0m{text}");
                }
                None => out.push_str(row),
            }
        }
        let _ = write!(out, "\x1b[2m{}\x1b[0m\x1b[J", paint::fitting(hint, room));
        let up = painting.rows.len() - 1 - painting.cursor.0;
        if up > 0 {
            let _ = write!(out, "\x1b[{up}A");
        }
        let _ = write!(out, "\r\x1b[{}C", painting.cursor.1.max(1));
        self.row = painting.cursor.0;
        io::stderr().write_all(out.as_bytes())
    }

    /// Escape sequence back to the start of the last painting.
    fn rewind(&self) -> String {
        match self.row {
            0 => "\r".into(),
            up => format!("\x1b[{up}A\r"),
        }
    }

    /// Repaints without a hint and moves the cursor to the next line.
    fn leave(&mut self, prompt: &str, draft: &Draft, written: Written) -> io::Result<Written> {
        self.paint(prompt, &Draft::new(draft.text()), "")?;
        self.row = 0;
        io::stderr().write_all(b"\r\n")?;
        Ok(written)
    }
}

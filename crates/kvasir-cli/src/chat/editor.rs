//! Line editor of `kvasir chat`, on `rustyline`: history with search, completion, hints, several lines.
//!
//! `rustyline` reads and draws on the controlling terminal, so stdout stays free for answers. It enters
//! raw mode for one text at a time and returns to the mode before, which is the quiet one of `terminal`.
//!
//! Guarded by `tests/terminal.rs`.

use crate::chat::terminal::Raw;
use rustyline::{
    Behavior, Cmd, CompletionType, Config, Context, EditMode, Editor, Helper, KeyCode, KeyEvent, Modifiers,
    completion::Completer,
    config::BellStyle,
    error::ReadlineError,
    highlight::Highlighter,
    hint::{Hint, Hinter},
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use std::{
    borrow::Cow,
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Entries kept in the history.
const MOST: usize = 1000;

/// Completion, hint and continuation rules of the input language.
pub(crate) trait Words {
    /// All completions of this text.
    fn completions(&self, text: &str) -> Vec<String>;
    /// Hint to display after this text.
    fn hint(&self, text: &str) -> Option<String>;
    /// Whether Enter continues the text on another line.
    fn is_continued(&self, text: &str) -> bool;
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

/// Key bindings of the editor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Keys {
    #[default]
    Emacs,
    Vi,
}

/// The line editor.
pub(crate) struct LineEditor<W: Words> {
    editor: Editor<Rules<W>, FileHistory>,
    file: Option<PathBuf>,
}

impl<W: Words> LineEditor<W> {
    /// An editor whose history is stored in `file`, if given.
    pub(super) fn new(words: W, file: Option<PathBuf>, keys: Keys) -> rustyline::Result<Self> {
        let mode = match keys {
            Keys::Emacs => EditMode::Emacs,
            Keys::Vi => EditMode::Vi,
        };
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .edit_mode(mode)
            .completion_type(CompletionType::List)
            .bell_style(BellStyle::None)
            .max_history_size(MOST)?
            .build();
        let history = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history)?;
        editor.set_helper(Some(Rules(words)));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        if let Some(path) = &file {
            // The chat works without a history file.
            let _ = create_folder(path).and_then(|()| editor.load_history(path).map_err(io::Error::other));
        }
        Ok(Self { editor, file })
    }

    /// Reads one text interactively, in raw mode, and adds it to the history.
    pub(super) fn read(&mut self, prompt: &str) -> io::Result<Written> {
        let written = self.read_once(prompt)?;
        if let Written::Text(text) = &written
            && !text.trim().is_empty()
        {
            self.remember(text);
        }
        Ok(written)
    }

    /// Reads one text interactively, in raw mode.
    pub(super) fn read_once(&mut self, prompt: &str) -> io::Result<Written> {
        let styled = format!("\x1b[1;36m{prompt}\x1b[0m");
        let read = {
            let _raw = Raw::enter();
            self.editor.readline(&(prompt, styled))
        };
        match read {
            Ok(text) => Ok(Written::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Written::Interrupted),
            Err(ReadlineError::Eof) => Ok(Written::End),
            Err(ReadlineError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Appends an entry to memory and file at once, so it survives a crash.
    fn remember(&mut self, text: &str) {
        let is_new = self.editor.add_history_entry(text).unwrap_or(false);
        if let Some(path) = self.file.as_deref().filter(|_| is_new) {
            // The chat works without a history file.
            let _ = self.editor.append_history(path);
        }
    }
}

/// Creates the private folder of a file.
fn create_folder(file: &Path) -> io::Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The rules of the input language, as `rustyline` wants them.
struct Rules<W>(W);

/// A hint that is shown and never inserted.
struct Shown(String);

impl Hint for Shown {
    fn display(&self) -> &str {
        &self.0
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}

impl<W: Words> Helper for Rules<W> {}

impl<W: Words> Completer for Rules<W> {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok((0, line.get(..pos).map(|text| self.0.completions(text)).unwrap_or_default()))
    }
}

impl<W: Words> Hinter for Rules<W> {
    type Hint = Shown;

    fn hint(&self, line: &str, pos: usize, _: &Context<'_>) -> Option<Shown> {
        if pos < line.len() { None } else { self.0.hint(line).map(Shown) }
    }
}

impl<W: Words> Highlighter for Rules<W> {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[2m{hint}\x1b[0m"))
    }
}

impl<W: Words> Validator for Rules<W> {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if self.0.is_continued(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

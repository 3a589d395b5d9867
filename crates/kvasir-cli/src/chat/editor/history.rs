//! Input history of the line editor, appended to a private file as it grows.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Entries kept when the file is trimmed.
const MOST: usize = 1000;

/// Input history, with an optional file.
#[derive(Default)]
pub(crate) struct History {
    texts: Vec<String>,
    file: Option<PathBuf>,
    /// Index of the entry shown while browsing.
    at: Option<usize>,
    /// The draft before browsing began.
    draft: String,
}

impl History {
    /// Loads the file, if it exists, and trims it if it has grown too long.
    pub(super) fn open(file: Option<PathBuf>) -> Self {
        let text = file.as_deref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let mut texts: Vec<String> = text.lines().map(unescaped).collect();
        if texts.len() > 2 * MOST {
            texts.drain(..texts.len() - MOST);
            if let Some(path) = &file {
                // If writing fails, the file stays long.
                let _ = fs::write(path, texts.iter().map(|text| escaped(text) + "\n").collect::<String>());
            }
        }
        Self { texts, file, ..Self::default() }
    }

    /// Appends an entry to memory and file at once, so it survives a crash.
    pub(super) fn push(&mut self, text: &str) {
        self.at = None;
        if self.texts.last().is_some_and(|last| last == text) {
            return;
        }
        self.texts.push(text.to_owned());
        if let Some(path) = &self.file {
            // The chat works without a history file.
            let _ = append(path, &(escaped(text) + "\n"));
        }
    }

    /// The previous entry; `now` is the current draft.
    pub(super) fn back(&mut self, now: &str) -> Option<String> {
        let at = self.at.unwrap_or(self.texts.len()).checked_sub(1)?;
        if self.at.is_none() {
            self.draft = now.to_owned();
        }
        self.at = Some(at);
        self.texts.get(at).cloned()
    }

    /// The next entry, or finally the draft.
    pub(super) fn forward(&mut self) -> Option<String> {
        let at = self.at? + 1;
        self.at = (at < self.texts.len()).then_some(at);
        Some(self.texts.get(at).unwrap_or(&self.draft).clone())
    }
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(line.as_bytes())
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push(chars.next().map_or('\\', |c| if c == 'n' { '\n' } else { c })),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_as_they_were() {
        let folder = std::env::temp_dir().join(format!("kvasir-history-{}", std::process::id()));
        let path = folder.join("chat");
        let mut history = History::open(Some(path.clone()));
        for text in ["one", "two\nlines \\n", "two\nlines \\n", "three"] {
            history.push(text);
        }
        let mut again = History::open(Some(path));
        assert_eq!(again.texts, ["one", "two\nlines \\n", "three"]);
        assert_eq!(again.back("draft").as_deref(), Some("three"));
        assert_eq!(again.back("three").as_deref(), Some("two\nlines \\n"));
        assert_eq!(again.back("").as_deref(), Some("one"));
        assert_eq!(again.back(""), None);
        let forward: Vec<_> = std::iter::from_fn(|| again.forward()).collect();
        assert_eq!(forward, ["two\nlines \\n", "three", "draft"]);
        fs::remove_dir_all(folder).unwrap();
    }
}

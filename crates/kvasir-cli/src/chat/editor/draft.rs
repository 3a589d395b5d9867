//! Text buffer of the line editor with cursor movement and editing by character, word and line.
//!
//! Invariant: the cursor is always on a character boundary (checked by a random test).

/// A text buffer with a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draft {
    text: String,
    /// Byte offset of the cursor, on a character boundary.
    at: usize,
}

impl Draft {
    /// A buffer with the cursor at its end.
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { at: text.len(), text }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn cursor(&self) -> usize {
        self.at
    }

    pub(super) fn insert(&mut self, text: &str) {
        self.text.insert_str(self.at, text);
        self.at += text.len();
    }

    fn before(&self) -> &str {
        &self.text[..self.at]
    }

    fn after(&self) -> &str {
        &self.text[self.at..]
    }

    pub(super) fn left(&mut self) {
        self.at -= self.before().chars().next_back().map_or(0, char::len_utf8);
    }

    pub(super) fn right(&mut self) {
        self.at += self.after().chars().next().map_or(0, char::len_utf8);
    }

    fn line_start(&self) -> usize {
        self.before().rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.after().find('\n').map_or(self.text.len(), |at| self.at + at)
    }

    pub(super) fn home(&mut self) {
        self.at = self.line_start();
    }

    pub(super) fn end(&mut self) {
        self.at = self.line_end();
    }

    fn word_start(&self) -> usize {
        let words = self.before().trim_end_matches(|c: char| !c.is_alphanumeric());
        words.trim_end_matches(char::is_alphanumeric).len()
    }

    pub(super) fn word_left(&mut self) {
        self.at = self.word_start();
    }

    pub(super) fn word_right(&mut self) {
        let rest = self.after().trim_start_matches(|c: char| !c.is_alphanumeric());
        self.at = self.text.len() - rest.trim_start_matches(char::is_alphanumeric).len();
    }

    /// Moves up a line, keeping the column. False on the first line.
    pub(super) fn up(&mut self) -> bool {
        let start = self.line_start();
        if start == 0 {
            return false;
        }
        let column = self.text[start..self.at].chars().count();
        self.at = start - 1;
        let above = self.line_start();
        self.at = above + width_of(&self.text[above..start - 1], column);
        true
    }

    /// Moves down a line, keeping the column. False on the last line.
    pub(super) fn down(&mut self) -> bool {
        let end = self.line_end();
        if end == self.text.len() {
            return false;
        }
        let column = self.text[self.line_start()..self.at].chars().count();
        self.at = end + 1;
        self.at += width_of(&self.text[end + 1..self.line_end()], column);
        true
    }

    fn cut(&mut self, from: usize, to: usize) {
        self.text.drain(from..to);
        self.at = from;
    }

    pub(super) fn backspace(&mut self) {
        let to = self.at;
        self.left();
        self.cut(self.at, to);
    }

    pub(super) fn delete(&mut self) {
        let from = self.at;
        self.right();
        self.cut(from, self.at);
    }

    pub(super) fn delete_word(&mut self) {
        self.cut(self.word_start(), self.at);
    }

    pub(super) fn delete_to_start(&mut self) {
        self.cut(self.line_start(), self.at);
    }

    pub(super) fn delete_to_end(&mut self) {
        self.cut(self.at, self.line_end());
    }
}

/// Byte length of the first `columns` characters.
fn width_of(line: &str, columns: usize) -> usize {
    line.char_indices().nth(columns).map_or(line.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::Random;

    #[test]
    fn the_cursor_never_stands_inside_a_character() {
        let acts: [fn(&mut Draft); 11] = [
            Draft::left,
            Draft::right,
            Draft::home,
            Draft::end,
            Draft::word_left,
            Draft::word_right,
            |d| d.insert("ü\n"),
            Draft::backspace,
            Draft::delete,
            |d| _ = d.up(),
            |d| _ = d.down(),
        ];
        let mut draft = Draft::new("äö x\n\n日本 go");
        let mut random = Random::new(7);
        for _ in 0..20_000 {
            random.pick(&acts)(&mut draft);
            assert!(draft.text.is_char_boundary(draft.at));
            if draft.text.len() > 60 {
                draft.delete_to_start();
                draft.delete_word();
                draft.delete_to_end();
            }
        }
    }

    #[test]
    fn lines_and_words() {
        let mut draft = Draft::new("one two\nthree");
        assert!(!draft.down());
        assert!(draft.up());
        assert_eq!(draft.before(), "one t");
        draft.word_left();
        draft.insert("big ");
        draft.delete_to_end();
        assert_eq!(draft.text(), "one big \nthree");
        draft.delete_word();
        assert_eq!(draft.text(), "one \nthree");
        assert!(!draft.up());
    }
}

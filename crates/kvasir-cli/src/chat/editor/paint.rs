//! Lays out the edited text in terminal columns and rows, minding wide characters and tabs.

use unicode_width::UnicodeWidthChar;

/// Rendering of a tab.
const TAB: &str = "    ";

/// A laid-out text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Painting {
    /// Terminal rows.
    pub(super) rows: Vec<String>,
    /// Row and column of the cursor.
    pub(super) cursor: (usize, usize),
}

/// Wraps a text after a prompt; continuation rows align with the first row's text.
pub(crate) fn lay_out(prompt: &str, text: &str, at: usize, width: usize) -> Painting {
    let indent = columns(prompt);
    // At least a few columns beside the prompt. The last column stays free, because terminals
    // differ in their wrapping there.
    let width = width.max(indent + 4) - 1;
    let (mut rows, mut row, mut column) = (Vec::new(), prompt.to_owned(), indent);
    let mut cursor = None;
    let mut turn = |row: &mut String| rows.push(std::mem::replace(row, " ".repeat(indent)));
    let mut count = 0;
    for (i, c) in text.char_indices() {
        let wide = if c == '\t' { TAB.len() } else { c.width().unwrap_or(0) };
        if c != '\n' && column + wide > width {
            turn(&mut row);
            (count, column) = (count + 1, indent);
        }
        if i == at {
            cursor = Some((count, column));
        }
        if c == '\n' {
            turn(&mut row);
            (count, column) = (count + 1, indent);
        } else {
            match c {
                '\t' => row.push_str(TAB),
                _ => row.push(c),
            }
            column += wide;
        }
    }
    rows.push(row);
    Painting { rows, cursor: cursor.unwrap_or((count, column)) }
}

/// Display width of a text.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().filter_map(UnicodeWidthChar::width).sum()
}

/// The longest prefix that fits into `width` columns.
pub(crate) fn fitting(text: &str, width: usize) -> &str {
    let mut used = 0;
    let cut = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > width
    });
    cut.map_or(text, |(at, _)| &text[..at])
}

impl Painting {
    /// Clips to the rows around the cursor that fit into `height`.
    pub(super) fn clipped(mut self, height: usize) -> Self {
        let height = height.max(1);
        if self.rows.len() > height {
            let first = (self.cursor.0 + 1).saturating_sub(height);
            self.rows = self.rows.drain(first..).take(height).collect();
            self.cursor.0 -= first;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_break_where_the_terminal_ends() {
        let painting = lay_out("> ", "abcdefgh\nij", 8, 8);
        assert_eq!(painting.rows, ["> abcde", "  fgh", "  ij"]);
        assert_eq!(painting.cursor, (1, 5));
        assert_eq!(lay_out("> ", "abcde", 5, 8).cursor, (0, 7));
        let wide = lay_out("> ", "日本語", 6, 8);
        assert_eq!((wide.rows, wide.cursor), (vec!["> 日本".to_owned(), "  語".into()], (1, 2)));
        assert_eq!(lay_out("> ", "", 0, 0), Painting { rows: vec!["> ".into()], cursor: (0, 2) });
    }

    #[test]
    fn a_low_terminal_shows_the_rows_around_the_cursor() {
        let painting = lay_out("> ", "a\nb\nc\nd", 2, 20).clipped(2);
        assert_eq!((painting.rows, painting.cursor), (vec!["> a".to_owned(), "  b".into()], (1, 2)));
        let end = lay_out("> ", "a\nb\nc\nd", 7, 20).clipped(2);
        assert_eq!((end.rows, end.cursor), (vec!["  c".to_owned(), "  d".into()], (1, 3)));
        assert_eq!(fitting("日本", 3), "日");
    }
}

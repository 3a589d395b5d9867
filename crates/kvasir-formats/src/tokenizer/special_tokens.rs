//! Splits text at special tokens, before normalization and merging.

use std::collections::HashMap;

/// Matcher for special tokens: leftmost first, longest among those at one position.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    /// Lengths of the tokens that start with a byte, longest first. Bounds the hash lookups per
    /// position where many tokens share a prefix.
    lengths: HashMap<u8, Vec<usize>>,
    by_text: HashMap<Box<[u8]>, Found>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    id: u32,
    strips_right: bool,
}

/// A token that is matched in text as a whole.
#[derive(Debug)]
pub(super) struct SpecialToken {
    pub(super) text: Box<str>,
    pub(super) id: u32,
    /// `rstrip`: following white space is dropped.
    pub(super) strips_right: bool,
}

/// A text part, or a special token found in the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    Token(u32),
}

impl SpecialTokens {
    pub(super) fn new(tokens: impl IntoIterator<Item = SpecialToken>) -> Self {
        let mut all = Self::default();
        for SpecialToken { text, id, strips_right } in tokens {
            let text = text.into_boxed_bytes();
            let Some(&first) = text.first() else { continue };
            all.lengths.entry(first).or_default().push(text.len());
            let found = all.by_text.entry(text).or_insert(Found { id, strips_right });
            if id < found.id {
                *found = Found { id, strips_right };
            }
        }
        for lengths in all.lengths.values_mut() {
            lengths.sort_unstable_by_key(|len| std::cmp::Reverse(*len));
            lengths.dedup();
        }
        all
    }

    /// The longest special token at the start of `text`, with its length.
    fn longest(&self, text: &[u8]) -> Option<(usize, Found)> {
        let mut lengths = self.lengths.get(text.first()?)?.iter();
        lengths.find_map(|&len| Some((len, *self.by_text.get(text.get(..len)?)?)))
    }

    /// Splits text into text parts and special tokens.
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let (mut out, mut from, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            match self.longest(&text.as_bytes()[at..]) {
                Some((len, special)) => {
                    if from < at {
                        out.push(Piece::Text(&text[from..at]));
                    }
                    out.push(Piece::Token(special.id));
                    at += len;
                    if special.strips_right {
                        at = text.len() - text[at..].trim_start_matches(ascii_space).len();
                    }
                    from = at;
                }
                None => at += 1,
            }
        }
        if from < text.len() {
            out.push(Piece::Text(&text[from..]));
        }
        out
    }
}

fn ascii_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0b'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(tokens: &[&str], strips_right: bool) -> SpecialTokens {
        let special = |(text, id): (&&str, u32)| SpecialToken { text: (*text).into(), id, strips_right };
        SpecialTokens::new(tokens.iter().zip(1..).map(special))
    }

    #[test]
    fn white_space_is_stripped_beside_tokens_that_ask_for_it() {
        let got = specials(&["<a>"], true).split("x <a> \n\x0b y<a>\u{a0}<a> ");
        let expected = [
            Piece::Text("x "),
            Piece::Token(1),
            Piece::Text("y"),
            Piece::Token(1),
            Piece::Text("\u{a0}"),
            Piece::Token(1),
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn the_leftmost_longest_special_token_wins() {
        let specials = specials(&["<a>", "<a><b>", "é"], false);
        let got = specials.split("x<a><b>y<a>é<");
        let expected = [
            Piece::Text("x"),
            Piece::Token(2),
            Piece::Text("y"),
            Piece::Token(1),
            Piece::Token(3),
            Piece::Text("<"),
        ];
        assert_eq!(got, expected);
    }
}

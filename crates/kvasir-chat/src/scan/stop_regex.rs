//! Ends an answer behind the first match of a regular expression (`stop_regex`).
//!
//! The last kilobyte of text is searched after every token, so the answer ends behind the token that
//! completes a match, and a match longer than that is not found. The match stays in the output, so
//! nothing is held back for it.

use regex::{RegexSet, RegexSetBuilder};

/// Bytes of text in which a match is searched: longer matches are not found.
const WINDOW: usize = 1024;
/// Limit of a compiled set, in bytes.
const MAX_SIZE: usize = 1 << 20;

/// Patterns that end an answer, with the end of its text so far.
#[derive(Clone, Debug)]
pub struct StopRegex {
    patterns: RegexSet,
    tail: String,
}

impl StopRegex {
    /// Compiles patterns; the error says what is wrong with which. Matching is linear in the text.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        let patterns = RegexSetBuilder::new(patterns).size_limit(MAX_SIZE).build();
        Ok(Self { patterns: patterns.map_err(|error| error.to_string())?, tail: String::new() })
    }

    /// Feeds the text of one token; returns whether a pattern matches now.
    pub fn push(&mut self, text: &str) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        self.tail.push_str(text);
        let from = self.tail.ceil_char_boundary(self.tail.len().saturating_sub(WINDOW));
        self.tail.drain(..from);
        self.patterns.is_match(&self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_match(pattern: &str, pieces: &[&str]) -> Option<usize> {
        let mut stop = StopRegex::new(&[pattern.to_owned()]).unwrap();
        pieces.iter().position(|piece| stop.push(piece))
    }

    #[test]
    fn matches_are_found_across_tokens() {
        assert_eq!(first_match(r"\d{3}", &["a 1", "2", "x", "12", "3", "4"]), Some(4));
        assert_eq!(first_match("ä+b", &["ä", "äb"]), Some(1));
        assert_eq!(first_match("b", &["a", "c"]), None);
    }

    #[test]
    fn the_window_bounds_the_search() {
        let long = "x".repeat(2 * WINDOW);
        assert_eq!(first_match("^a", &[&long, "a"]), None);
        assert_eq!(first_match("a.*b", &["a", &long, "b"]), None);
    }

    #[test]
    fn invalid_and_huge_patterns_are_refused() {
        assert!(StopRegex::new(&["(".to_owned()]).is_err());
        assert!(StopRegex::new(&["(a{1000}){1000}".to_owned()]).is_err());
    }
}

//! Ranked BPE merges of a GGUF file, looked up lazily.

use crate::error::{Error, Result};
use crate::gguf::value::Array;
use crate::tokenizer::string_table::StringTable;
use std::collections::HashMap;

/// The merge list: one pair per line, parts separated by a space.
///
/// Lines are resolved only when a pair occurs; most never do.
#[derive(Debug)]
pub(super) struct Merges {
    lines: StringTable,
}

impl Merges {
    pub(super) fn of(list: &Array) -> Result<Self> {
        let pair = |i: usize, line: &str| match split(line) {
            Some(_) => Ok(()),
            None => Err(Error::at("tokenizer.ggml.merges", format!("merge {i} ({line:?}) is not a pair"))),
        };
        Ok(Self { lines: StringTable::of(list, pair)? })
    }
}

/// End of a line's left part, which may itself start with a space.
fn split(line: &str) -> Option<usize> {
    line.bytes().skip(1).position(|b| b == b' ').map(|at| at + 1)
}

/// Merges keyed by token ids, with memoized lookups. One per encode call.
pub(super) struct Pairs<'a> {
    merges: &'a Merges,
    tokens: &'a StringTable,
    known: HashMap<(u32, u32), Option<(u32, u32)>>,
    room: String,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(merges: &'a Merges, tokens: &'a StringTable) -> Self {
        Self { merges, tokens, known: HashMap::new(), room: String::new() }
    }

    /// Rank and merged token of a pair; `None` if the result is not a token.
    pub(super) fn get(&mut self, left: u32, right: u32) -> Option<(u32, u32)> {
        let Self { merges, tokens, known, room } = self;
        *known.entry((left, right)).or_insert_with(|| {
            let (left, right) = (tokens.get(left)?, tokens.get(right)?);
            let mut join = |parts: &[&str], list: &StringTable| {
                room.clear();
                room.extend(parts.iter().copied());
                list.find(room).filter(|_| parts.len() < 3 || split(room) == Some(left.len()))
            };
            let rank = join(&[left, " ", right], &merges.lines)?;
            Some((rank, join(&[left, right], tokens)?))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn merges_are_found_by_both_parts() {
        let tokens = ["a", "b", "ab", " ", " a", "a b", "aa b", "aab", "aa"];
        let tokens = StringTable::of(&Array::of_strings(tokens), |_, _| Ok(())).unwrap();
        // "ba" is not a token; of a duplicate pair the first counts.
        let lines = ["b a", "a b", "  a", "a b", "a a b"];
        let merges = Merges::of(&Array::of_strings(lines)).unwrap();
        let mut pairs = Pairs::new(&merges, &tokens);
        let id = |text: &str| tokens.find(text).unwrap();
        for _ in 0..2 {
            assert_eq!(pairs.get(id("a"), id("b")), Some((1, id("ab"))));
            assert_eq!(pairs.get(id("b"), id("a")), None);
            assert_eq!(pairs.get(id(" "), id("a")), Some((2, id(" a"))));
            // "a a b" is "a" + "a b" = "aa b", not "a a" + "b".
            assert_eq!(pairs.get(id("a"), id("a b")), Some((4, id("aa b"))));
            assert_eq!(pairs.get(id("aa"), id("b")), None);
            assert_eq!(pairs.get(id("a"), 99), None);
        }
    }

    #[test]
    fn a_merge_that_is_not_a_pair_is_refused() {
        for line in ["ab", "", " ab"] {
            let refused = Merges::of(&Array::of_strings([line])).unwrap_err();
            assert!(refused.to_string().contains("merge 0"), "{refused}");
        }
    }
}

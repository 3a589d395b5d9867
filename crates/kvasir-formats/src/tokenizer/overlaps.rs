//! Finds the token sequences that spell a text, for DRY's sequence breakers. The algorithm is
//! llama.cpp's `get_overlapping_token_sequences`.

use crate::error::Result;
use crate::tokenizer::Tokenizer;
use std::collections::BTreeMap;

/// Maximum length of a tail in tokens, as in llama.cpp.
const MAX_TAIL: usize = 20;

/// Tokens that contain a text or end with a prefix of it (heads), and the tokens of its rest
/// (tails).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// `(token, index into tails)`: the token and the tail that completes the text.
    pub heads: Vec<(u32, u32)>,
    /// Tokens of the rest of a text; the first tail is empty.
    pub tails: Vec<Vec<u32>>,
}

impl Tokenizer {
    /// Finds the tokens that contain one of these texts or end with a prefix of it, with the tokens
    /// of the rest. Scans the whole vocabulary once; returns `None` early if there are more than
    /// `max` heads.
    pub fn overlaps(&self, texts: &[&str], max: usize) -> Result<Option<Overlaps>> {
        let mut known: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        let mut found = Overlaps { heads: Vec::new(), tails: vec![Vec::new()] };
        for id in 0..self.len() as u32 {
            let Some(word) = self.bytes(id).filter(|word| !word.is_empty()) else { continue };
            for (n, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
                let bytes = text.as_bytes();
                if word.windows(bytes.len()).any(|window| window == bytes) {
                    found.heads.push((id, 0));
                    continue;
                }
                // The rest must begin at a character: part of one cannot be tokenized.
                let begins = |len: &usize| text.is_char_boundary(*len) && word.ends_with(&bytes[..*len]);
                for len in (1..bytes.len()).filter(begins) {
                    let tail = match known.get(&(n, len)) {
                        Some(tail) => *tail,
                        None => {
                            let mut tail = self.encode(&text[len..], false)?;
                            tail.truncate(MAX_TAIL);
                            found.tails.push(tail);
                            *known.entry((n, len)).or_insert(found.tails.len() as u32 - 1)
                        }
                    };
                    found.heads.push((id, tail));
                }
            }
            if found.heads.len() > max {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_head_with_its_tail_contains_the_text() {
        let json = include_bytes!("../../tests/data/tokenizers/qwen/tokenizer.json");
        let tokenizer = Tokenizer::from_json(json).unwrap();
        let bytes = |id: u32| tokenizer.bytes(id).unwrap();
        for text in ["\n", ":", "the", "o: "] {
            let found = tokenizer.overlaps(&[text], usize::MAX).unwrap().unwrap();
            assert!(found.heads.len() > 1, "{text:?}: {found:?}");
            for (head, tail) in &found.heads {
                let tail = found.tails[*tail as usize].iter().flat_map(|id| bytes(*id));
                let spelled: Vec<u8> = bytes(*head).into_iter().chain(tail).collect();
                assert!(
                    spelled.windows(text.len()).any(|window| window == text.as_bytes()),
                    "{text:?} {head}"
                );
            }
            let contains = |id: &u32| {
                let word = tokenizer.bytes(*id).unwrap_or_default();
                word.windows(text.len()).any(|window| window == text.as_bytes())
            };
            let whole = (0..tokenizer.len() as u32).filter(contains).count();
            assert_eq!(found.heads.iter().filter(|(_, tail)| *tail == 0).count(), whole, "{text:?}");
        }
        assert_eq!(tokenizer.overlaps(&["e"], 3).unwrap(), None);
        assert_eq!(tokenizer.overlaps(&[], 3).unwrap().unwrap().heads, []);
    }
}

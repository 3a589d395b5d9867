//! A hash by which processes check that they have loaded the same tokenizer.

use crate::tokenizer::Tokenizer;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Text whose tokens depend on the merges, the normalizer and the pre-tokenizer.
const PROBE: &str =
    "  The naïve café's 12345 ﬁles:\n\n\tfn main() { x += 1; } 日本語 🦀👩‍👩‍👧 e\u{301} İ\u{a0}end";

impl Tokenizer {
    /// Hashes the spellings and bytes of all tokens, and the tokens of [`PROBE`]. Equal in all
    /// processes of one build that have loaded the same files; not stable across Rust versions.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for id in 0..self.len() as u32 {
            (self.id_to_token(id), self.bytes(id), self.is_special(id)).hash(&mut hasher);
        }
        for add_special in [false, true] {
            self.encode(PROBE, add_special).ok().hash(&mut hasher);
        }
        hasher.finish()
    }
}

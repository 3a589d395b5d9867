//! Positions of a prompt at which messages end, found by control tokens.
//!
//! Templates write control tokens around each message; `guard` of kvasir-chat keeps them out of
//! client text. Later prompts diverge at such positions: a turn is appended, edited or branched.
//! Models with recurrent layers store checkpoints of their states there. Sliding-window layers
//! evict the K and V before such a position last.

use crate::model::Model;
use kvasir_kv::{Position, Token};

/// Maximum positions per prompt; the last ones are used.
const MAX_ENDS: usize = 1024;

impl Model {
    /// The positions of a prompt's control tokens, in ascending order; empty if the cache uses no
    /// marks.
    pub(crate) fn message_ends(&self, prompt: &[Token]) -> Vec<Position> {
        if !self.facts.uses_marks {
            return Vec::new();
        }
        let tokenizer = self.chat.tokenizer();
        let controls = (0..).zip(prompt).filter(|(_, token)| tokenizer.is_special(**token));
        let mut ends: Vec<Position> = controls.map(|(position, _)| position).filter(|end| *end > 0).collect();
        ends.drain(..ends.len().saturating_sub(MAX_ENDS));
        ends
    }
}

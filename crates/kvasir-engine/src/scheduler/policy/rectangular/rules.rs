//! The two rule sets of rectangular scheduling (`--rules document` and `--rules later`): queue
//! order, length test, block allocation ahead of chunks, and the reported tkv.

use crate::scheduler::policy::rectangular::prefill::PrefillShape;
use serde::{Deserialize, Serialize};
use std::fmt;

/// `--rules`: the scheduling rules of the reference document, or those of the later implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rules {
    /// Strict queue order; a new prompt must pass the context-length test; a prefill reports the
    /// padded position of the batch; a first chunk allocates blocks for its whole padded width.
    #[default]
    Document,
    /// Skips ahead in the queue; no context-length test; a prefill reports its prompt's length; a
    /// first chunk allocates blocks for its tokens only.
    Later,
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Document => "document",
            Self::Later => "later",
        })
    }
}

impl Rules {
    /// Whether a request may overtake one that cannot start now.
    pub fn skips_ahead(self) -> bool {
        self == Self::Later
    }

    /// Whether the context-length test runs before a prompt joins the decode batch.
    pub fn tests_length(self) -> bool {
        self == Self::Document
    }

    /// Tokens with allocated blocks once the `run`-th chunk (from 1) of a prompt with a hit of
    /// `hit` tokens runs.
    ///
    /// At least the chunk's own tokens. Both rule sets count chunks from the end of the hit, not
    /// from the border of the chunk in which it ends. Blocks are allocated that far ahead.
    /// `document` also counts the left padding of a first chunk as tokens.
    pub fn taken(self, shape: PrefillShape, hit: u32, run: u32) -> u32 {
        let full = shape.chunk();
        let padded_first = match self {
            Self::Document => hit == 0 && run > 1,
            Self::Later => hit < full - shape.left(),
        };
        let skipped = if padded_first { shape.left() } else { 0 };
        (hit.saturating_add(full.saturating_mul(run)) - skipped).min(shape.prompt())
    }

    /// The tkv that a prefill step reports. `last` is that of the previous step; `alone` means that
    /// no row was decoding when this prompt started.
    pub fn prefill_tkv(self, prompt: u32, block: u32, last: u32, alone: bool, is_last_chunk: bool) -> u32 {
        if self == Self::Later {
            return prompt;
        }
        let tkv = if alone { prompt } else { last };
        if !is_last_chunk {
            return tkv;
        }
        let block = block.max(1);
        let base = (prompt.div_ceil(block).max(tkv.div_ceil(block)).max(1) - 1) * block;
        let offset = |at: u32| at.saturating_sub(1) % block + 1;
        base + offset(prompt).max(offset(tkv))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::policy::rectangular::prefill::HitPlan;

    #[test]
    fn document_rules_allocate_whole_chunks_later_rules_tokens() {
        let shape = PrefillShape::new(260, 64, 128);
        assert_eq!([1, 2, 3].map(|run| Rules::Document.taken(shape, 0, run)), [128, 192, 260]);
        assert_eq!([1, 2, 3].map(|run| Rules::Later.taken(shape, 0, run)), [64, 192, 260]);
        let aligned = PrefillShape::new(384, 64, 128);
        assert_eq!(Rules::Later.taken(aligned, 192, 1), 320, "runs ahead of the chunk that ends at 256");
        assert_eq!(Rules::Document.taken(aligned, 192, 1), 320);
    }

    #[test]
    fn allocation_covers_every_chunk_and_ends_at_the_prompt() {
        for rules in [Rules::Document, Rules::Later] {
            for (prompt, chunk) in (1..900).flat_map(|p| [64, 128, 256].map(|c| (p, c))) {
                let shape = PrefillShape::new(prompt, 64, chunk);
                for hit in (0..prompt).step_by(64) {
                    let plan = HitPlan::new(shape, hit);
                    let mut last = hit;
                    for i in plan.first_chunk..shape.chunks() {
                        let taken = rules.taken(shape, hit, i - plan.first_chunk + 1);
                        assert!(taken >= shape.tokens(i).end, "{rules} {shape:?} hit {hit} chunk {i}");
                        assert!(taken >= last && taken - shape.tokens(i).end < chunk);
                        last = taken;
                    }
                    assert_eq!(last, prompt);
                }
            }
        }
    }

    #[test]
    fn last_chunk_moves_tkv_to_the_common_block() {
        let tkv = |prompt, last, alone, end| Rules::Document.prefill_tkv(prompt, 64, last, alone, end);
        assert_eq!(tkv(260, 41, false, false), 41);
        assert_eq!(tkv(260, 59, false, true), 315);
        assert_eq!(tkv(193, 192, false, true), 256);
        assert_eq!(tkv(10, 298, false, true), 298);
        assert_eq!(tkv(260, 0, true, false), 260);
        assert_eq!(tkv(260, 260, true, true), 260);
        assert_eq!(Rules::Later.prefill_tkv(260, 64, 41, false, false), 260);
    }
}

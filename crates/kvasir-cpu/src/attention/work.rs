//! Units of attention work: a work item, and the chunks and query blocks that are processed together.

use crate::attention::layer::LayerAttention;
use crate::attention::query_blocks::{QueryBlock, QueryBlocks};
use crate::attention::softmax::state::ScoreScaling;
use crate::attention::views::{PrefixGroup, Views, VisibleChunk};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::tile::Tile;
use std::ops::Range;

/// A work item of one thread: some KV heads of all tokens of a group, or one KV head of some tokens
/// of a single view.
pub(crate) struct WorkItem<'v> {
    pub(crate) group: &'v PrefixGroup,
    /// KV heads.
    pub(crate) heads: Range<usize>,
    /// Tokens, counted over the group's views.
    pub(crate) tokens: Range<usize>,
    /// Budget in pages for the prefetch of the next layer's KV; 0 if it is off.
    pub(crate) pages: usize,
}

impl WorkItem<'_> {
    /// Lists the item's tokens: the index of each in the step, and how many entries it sees.
    pub(crate) fn list_tokens(&self, a: &LayerAttention<'_>, tokens: &mut Vec<(usize, i32)>) {
        tokens.clear();
        let mut at = 0;
        for view in a.views.in_order(self.group.views) {
            let queries = self.tokens.start.max(at)..self.tokens.end.min(at + view.tokens);
            tokens.extend(queries.map(|t| (view.token + t - at, a.visible(view, t - at) as i32)));
            at += view.tokens;
        }
    }

    /// The tokens of some views of the group, counted over the item's.
    pub(crate) fn tokens_of(&self, views: &Views, (first, end): (usize, usize)) -> Range<usize> {
        let before = |view: usize| {
            let at = views.in_order((self.group.views.0, view)).map(|view| view.tokens).sum::<usize>();
            at.clamp(self.tokens.start, self.tokens.end) - self.tokens.start
        };
        before(first)..before(end)
    }
}

/// Chunks processed together at most: the attention weights of all of them are made first, then O
/// is loaded and stored once. The V tiles of two chunks fit L1.
pub(crate) const CHUNKS_AT_ONCE: usize = 2;

/// Chunks and query blocks that are processed together, of the same KV heads.
pub(crate) struct ChunkWork<'c> {
    pub(crate) chunks: &'c [VisibleChunk<'c>],
    pub(crate) queries: &'c QueryBlocks,
    /// Blocks, as a range of those of `queries`.
    pub(crate) blocks: Range<usize>,
    /// KV heads.
    pub(crate) heads: Range<usize>,
    /// Whether the decode path is used: few query rows per KV head, V multiplied in place.
    pub(crate) decode: bool,
    pub(crate) scaling: ScoreScaling,
}

impl ChunkWork<'_> {
    pub(crate) fn blocks(&self) -> &[QueryBlock] {
        &self.queries.blocks[self.blocks.clone()]
    }
}

/// A query block with scores on their way to attention weights.
#[derive(Clone, Copy)]
pub(crate) struct ScoredBlock<'c> {
    pub(crate) work: &'c ChunkWork<'c>,
    pub(crate) block: usize,
    /// Index among the chunks that are processed together.
    pub(crate) chunk: usize,
    /// Positions up to the last visible one.
    pub(crate) seen: usize,
    /// Which of the two score buffers it uses (double buffering).
    pub(crate) place: usize,
}

impl<'c> ScoredBlock<'c> {
    pub(crate) fn block(&self) -> &'c QueryBlock {
        &self.work.queries.blocks[self.block]
    }

    /// A query tile per step of 32 numbers.
    pub(crate) fn queries(&self) -> &'c [Tile] {
        &self.work.queries.tiles[self.tiles()]
    }

    /// The query tiles widened to f32.
    pub(crate) fn widened_queries(&self) -> &'c [OperandB] {
        &self.work.queries.widened[self.tiles()]
    }

    fn tiles(&self) -> Range<usize> {
        let steps = self.work.queries.steps;
        self.block * steps..(self.block + 1) * steps
    }
}

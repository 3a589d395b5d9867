//! Units of attention work: a work item, a visible KV chunk, and the query blocks that meet it.

use crate::attention::views::{Chunk, PrefixGroup};
use crate::memory::kv_pool::rows::CHUNK;
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

/// Chunks processed together at most: the attention weights of all of them are made first, then O
/// is loaded and stored once. The V tiles of two chunks fit L1.
pub(crate) const CHUNKS_AT_ONCE: usize = 2;

/// A chunk of which some query row sees a part.
#[derive(Clone, Copy)]
pub(crate) struct VisibleChunk<'c> {
    pub(crate) chunk: &'c Chunk,
    /// The chunk that follows.
    pub(crate) next: Option<&'c Chunk>,
    /// First and last position with an entry.
    pub(crate) first: i32,
    pub(crate) last: i32,
}

/// Chunks and query blocks that are processed together, of the same KV heads.
pub(crate) struct ChunkWork<'c> {
    pub(crate) chunks: &'c [VisibleChunk<'c>],
    pub(crate) blocks: Range<usize>,
    /// KV heads, relative to the work item's first.
    pub(crate) heads: Range<usize>,
    /// Whether the decode path is used: few query rows per KV head, V multiplied in place.
    pub(crate) decode: bool,
}

impl VisibleChunk<'_> {
    /// Positions of the chunk up to the last entry.
    pub(crate) fn len(&self) -> usize {
        self.last as usize % CHUNK + 1
    }
}

/// A query block with scores on their way to attention weights.
#[derive(Clone, Copy)]
pub(crate) struct ScoredBlock {
    pub(crate) block: usize,
    /// Index among the chunks that are processed together.
    pub(crate) chunk: usize,
    /// Positions up to the last visible one.
    pub(crate) seen: usize,
    /// Which of the two score buffers it uses (double buffering).
    pub(crate) place: usize,
}

impl ScoredBlock {
    /// Its index among the weight tiles of `blocks` blocks per chunk.
    pub(crate) fn number(self, blocks: usize) -> usize {
        self.chunk * blocks + self.block
    }
}

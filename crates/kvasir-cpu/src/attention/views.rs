//! Read lists of attention: what each span of query tokens reads, as lists of KV chunks.
//!
//! - A *view* is what a span of query tokens reads; its entries are numbered in rising order of
//!   position.
//! - A *chunk* is its entries within 64 positions, aligned to multiples of 64 whatever the slots.
//! - A *run* is a range of consecutive positions in consecutive slots of one pool, within one
//!   chunk.
//!
//! A causal view serves all its query tokens with one list: query `q` sees a prefix of it. Explicit
//! masks and sparse selections get a view per query. Chunk bounds depend on positions alone, which
//! makes the order of reduction independent of the KV layout.

use crate::memory::kv_pool::rows::CHUNK;
use kvasir_kv::{Position, Slot};

/// Pool id of the layer's compressed entries (DeepSeek-V4), which are in no KV pool of the session.
pub(crate) const COMPRESSED_POOL: u32 = u32::MAX;

/// K and V rows with consecutive slots and consecutive positions, within one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) position: Position,
    pub(crate) pool: u32,
    pub(crate) slot: Slot,
    pub(crate) len: u32,
}

/// The entries of a view within one chunk of positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Number of the view's entries before this chunk.
    pub(crate) first: u32,
    /// Number of its entries in this chunk.
    pub(crate) len: u32,
    pub(crate) runs: (u32, u32),
}

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

/// What a span of query tokens reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// First query token, in the step's flat list.
    pub(crate) token: usize,
    pub(crate) tokens: usize,
    pub(crate) entries: usize,
    pub(crate) chunks: (usize, usize),
    /// If set, the last token sees all entries and each one before it one fewer; otherwise every
    /// token sees all.
    pub(crate) causal: bool,
}

/// Views whose first chunks are the same (branches of one prefix), or a single view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixGroup {
    /// Its views, as a range of [`Views::order`].
    pub(crate) views: (usize, usize),
    /// Its spans, as a range of [`Views::spans`].
    pub(crate) spans: (usize, usize),
}

/// A range of chunks that neighboring views of a group all read; they are read once.
///
/// The spans of one view are in order of position, so it reduces its chunks as it would alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSpan {
    /// The views, as a range of [`Views::order`].
    pub(crate) views: (usize, usize),
    /// The chunks, counted from each view's first.
    pub(crate) chunks: (usize, usize),
}

/// The read lists of a step; built once per step, or per layer with sparse key selection.
#[derive(Debug, Default)]
pub(crate) struct Views {
    pub(crate) views: Vec<View>,
    pub(crate) runs: Vec<Run>,
    pub(crate) chunks: Vec<Chunk>,
    /// Indices of the views, sorted so that views with a common prefix are neighbors.
    pub(crate) order: Vec<u32>,
    /// Groups of views with a common prefix, as ranges of [`order`](Self::order).
    pub(crate) groups: Vec<PrefixGroup>,
    pub(crate) spans: Vec<ChunkSpan>,
}

impl Views {
    /// Some views in [`order`](Self::order).
    pub(crate) fn in_order(&self, (first, end): (usize, usize)) -> impl Iterator<Item = &View> {
        self.order[first..end].iter().map(|&view| &self.views[view as usize])
    }

    pub(crate) fn chunks(&self, view: &View) -> &[Chunk] {
        &self.chunks[view.chunks.0..view.chunks.1]
    }

    /// The runs of a chunk, in order of position.
    pub(crate) fn runs(&self, chunk: &Chunk) -> &[Run] {
        &self.runs[chunk.runs.0 as usize..chunk.runs.1 as usize]
    }

    /// The entries of a chunk in order of position: pool, slot and position.
    pub(crate) fn entries(&self, chunk: &Chunk) -> impl Iterator<Item = (u32, Slot, Position)> {
        let runs = self.runs(chunk).iter();
        runs.flat_map(|run| (0..run.len).map(|i| (run.pool, run.slot + i, run.position + i)))
    }
}

impl VisibleChunk<'_> {
    /// Positions of the chunk up to the last entry.
    pub(crate) fn len(&self) -> usize {
        self.last as usize % CHUNK + 1
    }
}

impl Run {
    pub(crate) fn follows(&self, next: &Self) -> bool {
        self.pool == next.pool
            && self.slot + self.len == next.slot
            && self.position + self.len == next.position
    }
}

impl View {
    /// Number of entries that query `query` of this view sees: a prefix of the list.
    pub(crate) fn visible(&self, query: usize) -> usize {
        let all = self.entries;
        if self.causal { (all + query + 1).saturating_sub(self.tokens) } else { all }
    }
}

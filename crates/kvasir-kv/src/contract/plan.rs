//! `Plan`: the attention metadata of one step (slot mapping, block tables, positions, masks, and
//! slot copies that run first).
//!
//! In vLLM's words, `write_slots` is the slot mapping, `table` with `segments` is the block table,
//! and `rows[i].queries` are the query ranges. A batch row reads a list of segments in rising order
//! of position. A segment is a run of slots or a slice of the flat block table, in the session's
//! own pool or in a frozen prefix's pool.
//!
//! The vectors are reused from step to step. `PlanCache` records what stands in the memory, so the
//! next plan of the same cache rewrites only what changed; rows and segments are overwritten in
//! place. Plain data in deterministic order; `tests/oracle/device.rs` checks the form of every
//! plan.

use crate::contract::ids::{Position, SeqId, Slot, StepId};
use crate::contract::mask::Mask;
use crate::shared::plan_cache::{Identity, Places, PlanCache, Progress};
use serde::{Deserialize, Serialize};

/// A range of one of the flat lists of a plan or a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// First element.
    pub start: u32,
    /// Number of elements.
    pub len: u32,
}

impl Span {
    /// The elements `start .. start + len`.
    pub fn new(start: usize, len: usize) -> Self {
        Self { start: start as u32, len: len as u32 }
    }

    /// As a range of indices.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

/// The pool of a segment: 0 is the session's own, others hold frozen prefixes (`SharedPrefix`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolId(pub u32);

/// Copy of one slot's K and V, in every layer, before the step runs; stored bytes verbatim. All of
/// a plan's copies read before any of them writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCopy {
    /// Source.
    pub from: Slot,
    /// Destination.
    pub to: Slot,
}

/// How a segment's entries are laid out in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Entry `i` is slot `start + i`.
    Run {
        /// Slot of the first entry.
        start: Slot,
    },
    /// With `j = i + offset`, entry `i` is slot `table[at + j / block] * block + j % block`.
    Table {
        /// Offset in [`Plan::table`] of this segment's blocks.
        at: u32,
        /// Slots per table entry (block size); 1 for a slot table.
        block: u32,
        /// Entries of the first block that are skipped.
        offset: u32,
    },
}

/// A part of one batch row's read, in rising order of position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its pool.
    pub pool: PoolId,
    /// Layout of its entries in the pool.
    pub layout: Layout,
    /// Number of entries (KV rows).
    pub len: u32,
    /// Position of the first entry; entry `i` has position `first + i` unless `sparse` is set.
    pub first: Position,
    /// Offset in [`Plan::read_positions`] of the positions, if they are not consecutive.
    pub sparse: Option<u32>,
}

/// One batch row of a plan: one sequence's queries and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRow {
    /// The sequence.
    pub seq: SeqId,
    /// Its query tokens in the flat list of the step, redirected ones included.
    pub queries: Span,
    /// Its read, as a range of [`Plan::segments`] in order of position. It includes the K and V
    /// that this step writes for its own queries.
    pub segments: Span,
    /// Number of entries over all segments (the KV length).
    pub read_len: u32,
    /// Attention mask.
    pub mask: Mask,
    /// Dummy blocks that a rectangular executor pads in front of the read, so that all rows of a
    /// step are equally wide. No query sees them; executors of ragged reads ignore them.
    pub left_pad_blocks: u32,
    /// Leading queries whose writes go to a dummy slot because their K and V are cached already.
    pub redirected: u32,
}

/// Classification of a plan: the cheapest correct way to run its attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanKind {
    /// One batch row whose read is one run from slot 0, queries at its tail.
    #[default]
    Contiguous,
    /// Block tables per sequence.
    Ragged,
    /// At least one batch row has an explicit mask (draft tree, sliding window).
    Explicit,
}

/// Attention metadata of one claimed step: slot copies, slot mapping, block tables and masks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The claimed step.
    pub step: StepId,
    /// The cache's generation when it was written; submit refuses a plan that is not current.
    pub generation: u64,
    /// Classification.
    pub kind: PlanKind,
    /// Slot copies that run before anything is written.
    pub moves: Vec<SlotCopy>,
    /// One batch row per sequence, in the order of the claim.
    pub rows: Vec<PlanRow>,
    /// Position of every query token.
    pub positions: Vec<Position>,
    /// Slot mapping: where each query token's K and V are written, in the session's own pool.
    pub write_slots: Vec<Slot>,
    /// The segments of all batch rows.
    pub segments: Vec<Segment>,
    /// Block tables of all segments, flat. Entries that no segment names are meaningless.
    pub table: Vec<u32>,
    /// Positions of the entries of sparse segments.
    pub read_positions: Vec<Position>,
    /// Bits of all explicit masks.
    pub mask_words: Vec<u64>,
    /// Exclusive upper bound of every slot of the session's own pool that is read, written or
    /// copied.
    pub read_bound: Slot,
    /// What stands where in `table`, for the next plan in this memory. Code that changes `table`,
    /// `segments` or `rows` (except `left_pad_blocks`) must call [`Plan::reset`] before the next
    /// plan.
    #[serde(skip)]
    pub kept: PlanCache,
}

impl Plan {
    /// Empties the plan for the next step, keeping its memory; the next block tables are written in
    /// full.
    pub fn reset(&mut self, step: StepId, generation: u64) {
        self.empty(step, generation);
        self.rows.clear();
        self.segments.clear();
        self.table.clear();
        self.kept.clear();
    }

    /// Begins the next plan of `cache`. Keeps the block tables that this cache wrote, and rows and
    /// segments, which the next ones overwrite in place.
    pub(crate) fn begin(&mut self, step: StepId, generation: u64, cache: &Identity) {
        self.empty(step, generation);
        if !self.kept.begin(cache, &mut self.table) {
            self.rows.clear();
            self.segments.clear();
        }
    }

    /// Ends a begun plan: drops rows and segments that were not overwritten.
    pub(crate) fn end(&mut self) {
        self.rows.truncate(self.kept.written.rows);
        self.segments.truncate(self.kept.written.segments);
        self.kept.end();
    }

    /// Index of the next segment to be written.
    pub(crate) fn next_segment(&self) -> usize {
        self.kept.written.segments
    }

    pub(crate) fn push_segment(&mut self, segment: Segment) {
        write_over(&mut self.segments, &mut self.kept.written.segments, segment);
    }

    pub(crate) fn push_row(&mut self, row: PlanRow) {
        write_over(&mut self.rows, &mut self.kept.written.rows, row);
    }

    /// Decode fast path: writes the row of one query, whose position and write slot are already
    /// pushed, if it differs from the last plan only by its end. `far` and `near` are the heap and
    /// inline parts of the block table that it reads, `read_len` the entries in all. Returns false,
    /// with nothing changed, if the fast path does not apply.
    #[inline]
    pub(crate) fn go_on(
        &mut self,
        seq: SeqId,
        changes: u32,
        far: usize,
        near: &[u32],
        read_len: u32,
    ) -> bool {
        let written = self.kept.written;
        let Some(row) = self.rows.get_mut(written.rows) else { return false };
        let segments = row.segments;
        if row.seq != seq || segments.start as usize != written.segments {
            return false;
        }
        let end = segments.range().end;
        let Some(last) = self.segments.get_mut(end - 1) else { return false };
        if !self.kept.go_on(seq, changes, far, near, &mut self.table) {
            return false;
        }
        last.len = last.len + read_len - row.read_len;
        let queries = Span::new(self.positions.len() - 1, 1);
        *row =
            PlanRow { seq, queries, segments, read_len, mask: Mask::None, left_pad_blocks: 0, redirected: 0 };
        self.kept.written = Progress { rows: written.rows + 1, segments: end };
        true
    }

    /// Reserves host memory for the block tables of steps whose `rows` rows own `blocks` blocks
    /// together.
    pub fn expect(&mut self, blocks: usize, rows: usize) {
        let entries = PlanCache::most_entries(blocks, rows);
        self.table.reserve(entries.saturating_sub(self.table.len()));
    }

    /// Copies what is new of a sequence's block table (heap part `far`, inline part `near`) into
    /// `table`; returns where both begin.
    #[inline]
    pub(crate) fn place(&mut self, seq: SeqId, changes: u32, far: &[u32], near: &[u32]) -> Places {
        self.kept.place(seq, changes, far, near, &mut self.table)
    }

    /// Lays out entries that only this step needs in the scratch region; returns where they begin.
    pub(crate) fn lay(&mut self, entries: impl ExactSizeIterator<Item = u32>) -> u32 {
        let at = self.kept.lay(entries.len() as u32, &mut self.table);
        let places = &mut self.table[at as usize..at as usize + entries.len()];
        places.iter_mut().zip(entries).for_each(|(place, entry)| *place = entry);
        at
    }

    fn empty(&mut self, step: StepId, generation: u64) {
        self.step = step;
        self.generation = generation;
        self.kind = PlanKind::Contiguous;
        self.moves.clear();
        self.positions.clear();
        self.write_slots.clear();
        self.read_positions.clear();
        self.mask_words.clear();
        self.read_bound = 0;
    }

    /// Every entry that `row` reads, in order of position: pool, slot, position. Slow; for tests
    /// and `Lowering`.
    pub fn entries<'a>(&'a self, row: &PlanRow) -> impl Iterator<Item = (PoolId, Slot, Position)> + 'a {
        self.segments[row.segments.range()].iter().flat_map(move |segment| {
            (0..segment.len).map(move |i| (segment.pool, self.slot(segment, i), self.position(segment, i)))
        })
    }

    /// Slot of entry `i` of `segment`.
    pub fn slot(&self, segment: &Segment, i: u32) -> Slot {
        match segment.layout {
            Layout::Run { start } => start + i,
            Layout::Table { at, block, offset } => {
                let j = i + offset;
                self.table[(at + j / block) as usize] * block + j % block
            }
        }
    }

    /// Position of entry `i` of `segment`.
    pub fn position(&self, segment: &Segment, i: u32) -> Position {
        match segment.sparse {
            Some(at) => self.read_positions[(at + i) as usize],
            None => segment.first + i,
        }
    }

    /// Whether query `query` (counted within the row) sees entry `entry` of the row's read.
    pub fn sees(&self, row: &PlanRow, query: u32, entry: u32) -> bool {
        match row.mask {
            Mask::None => true,
            Mask::Causal => entry + (row.queries.len - 1 - query) < row.read_len,
            Mask::Explicit { at, words_per_query } => {
                let word = at + query * words_per_query + entry / 64;
                self.mask_words[word as usize] >> (entry % 64) & 1 == 1
            }
        }
    }
}

/// Overwrites the next element of a list kept from the last plan, or appends it.
fn write_over<T>(list: &mut Vec<T>, written: &mut usize, one: T) {
    match list.get_mut(*written) {
        Some(place) => *place = one,
        None => list.push(one),
    }
    *written += 1;
}

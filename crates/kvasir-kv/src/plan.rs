//! `Plan`: the attention metadata of one step (slot mapping, block tables, positions, masks, and
//! slot copies that run first).
//!
//! In vLLM's words, `write_slots` is the slot mapping, `table` with `segments` is the block table,
//! and `rows[i].queries` are the query ranges. A batch row reads a list of segments in rising order
//! of position. A segment is a run of slots or a slice of the flat block table, in the session's
//! own pool or in a frozen prefix's pool.
//!
//! The vectors are reused from step to step. `KeptTables` records what stands in the memory, so the
//! next plan of the same cache rewrites only what changed; rows and segments are overwritten in
//! place. Plain data in deterministic order; `tests/oracle/device.rs` checks the form of every
//! plan.

use crate::kept::{Identity, KeptTables, Places, Progress};
use crate::{Position, SeqId, Slot, StepId};
use serde::{Deserialize, Serialize};

/// A stretch of one of the flat lists of a plan or a batch.
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

/// Which pool a segment lies in: 0 is the session's own, others are frozen prefixes that it was forked off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolId(pub u32);

/// K and V of one slot copied to another before the step runs, stored bytes verbatim.
/// All of a plan's moves read before any of them writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowMove {
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
        /// Where in [`Plan::table`] this segment's blocks begin.
        at: u32,
        /// Slots per table entry; 1 makes it a table of slots.
        block: u32,
        /// Entries of the first block that are skipped.
        offset: u32,
    },
}

/// A part of what one row reads, in rising order of position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The pool that holds it.
    pub pool: PoolId,
    /// Where its entries are.
    pub layout: Layout,
    /// Number of entries.
    pub len: u32,
    /// Position of the first entry; entry `i` has position `first + i` unless `sparse` says otherwise.
    pub first: Position,
    /// Where in [`Plan::read_positions`] the entries' positions stand, when they are no run.
    pub sparse: Option<u32>,
}

/// What a row's queries may see of what the row reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mask {
    /// All of it.
    None,
    /// The queries are the last entries of the read: query `q` of `n` sees all but the last `n - 1 - q`.
    Causal,
    /// One bit per query and entry: query `q` sees entry `e` if bit `e % 64` of
    /// `mask_words[at + q * words_per_query + e / 64]` is set.
    Explicit {
        /// First word of the row's first query in [`Plan::mask_words`].
        at: u32,
        /// Words per query.
        words_per_query: u32,
    },
}

/// One sequence's part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRow {
    /// The sequence.
    pub seq: SeqId,
    /// Its query tokens in the flat list of the step, those written here for real and those redirected.
    pub queries: Span,
    /// What it reads: entries of [`Plan::segments`], in order of position. The K and V that this step writes
    /// for the row's own queries are part of it.
    pub segments: Span,
    /// Number of entries over all segments.
    pub read_len: u32,
    /// What each query sees.
    pub mask: Mask,
    /// Dummy blocks that a rectangular executor puts in front of the read so that all rows of a step are equally
    /// wide. They are never seen; executors of ragged reads ignore them.
    pub left_pad_blocks: u32,
    /// Leading queries whose writes are redirected to a dummy slot because their K and V are there already.
    pub redirected: u32,
}

/// The cheapest correct way to run a plan, as the cache classified it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanKind {
    /// One row, one run from slot 0, queries at its tail: the fused path.
    #[default]
    Contiguous,
    /// Per-sequence tables.
    Ragged,
    /// At least one row has an explicit mask.
    Explicit,
}

/// A cache's answer to one step's claim: row moves that happen first, write slots, read layout and masks.
/// Plain data in a deterministic order; the vectors are reused from step to step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The step it was made for.
    pub step: StepId,
    /// The cache's generation when it was made; submit refuses a plan whose generation is no longer current.
    pub generation: u64,
    /// How it may be run.
    pub kind: PlanKind,
    /// Moves that happen before anything is written.
    pub moves: Vec<RowMove>,
    /// One entry per sequence, in the order of the claim.
    pub rows: Vec<PlanRow>,
    /// Position of every query token.
    pub positions: Vec<Position>,
    /// Slot that every query token's K and V are written to, in the session's own pool.
    pub write_slots: Vec<Slot>,
    /// The segments of all rows.
    pub segments: Vec<Segment>,
    /// Block ids of all table segments. What no segment names has no meaning.
    pub table: Vec<u32>,
    /// Positions of the entries of sparse segments.
    pub read_positions: Vec<Position>,
    /// Bits of all explicit masks.
    pub mask_words: Vec<u64>,
    /// Every slot of the session's own pool that is read, written or moved is below this.
    pub read_bound: Slot,
    /// What of it stands where, for the next plan in this memory. Whoever changes its table, segments or rows (a row's `left_pad_blocks`
    /// apart) resets it.
    #[serde(skip)]
    pub kept: KeptTables,
}

impl Plan {
    /// Empties it for the next step, keeping its memory.
    pub fn reset(&mut self, step: StepId, generation: u64) {
        self.empty(step, generation);
        self.rows.clear();
        self.segments.clear();
        self.table.clear();
        self.kept.clear();
    }

    /// Empties it for the next step of `cache`, but for what it has of the cache's tables, and rows and segments that the next ones
    /// are written over.
    pub(crate) fn begin(&mut self, step: StepId, generation: u64, cache: &Identity) {
        self.empty(step, generation);
        if !self.kept.begin(cache, &mut self.table) {
            self.rows.clear();
            self.segments.clear();
        }
    }

    /// Ends what was begun: rows and segments that were not written over go.
    pub(crate) fn end(&mut self) {
        self.rows.truncate(self.kept.written.rows);
        self.segments.truncate(self.kept.written.segments);
        self.kept.end();
    }

    /// Where the next segment is written.
    pub(crate) fn next_segment(&self) -> usize {
        self.kept.written.segments
    }

    pub(crate) fn push_segment(&mut self, segment: Segment) {
        write_over(&mut self.segments, &mut self.kept.written.segments, segment);
    }

    pub(crate) fn push_row(&mut self, row: PlanRow) {
        write_over(&mut self.rows, &mut self.kept.written.rows, row);
    }

    /// Writes the row of one query, whose position and write slot are there, if it is what it was when this memory was written last
    /// but for its end: `far` and `near` entries of its table that it reads, `read_len` in all. False, and nothing done, if it is not.
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

    /// Takes memory for the tables of steps whose rows own `blocks` together.
    pub fn expect(&mut self, blocks: usize, rows: usize) {
        let entries = KeptTables::most_entries(blocks, rows);
        self.table.reserve(entries.saturating_sub(self.table.len()));
    }

    /// Brings a sequence's blocks into the table, those that lie far and those that lie near, and says where they begin.
    #[inline]
    pub(crate) fn place(&mut self, seq: SeqId, changes: u32, far: &[u32], near: &[u32]) -> Places {
        self.kept.place(seq, changes, far, near, &mut self.table)
    }

    /// Puts entries into the table that only this step needs, and says where they begin.
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

    /// Every entry that `row` reads, in order of position: pool, slot and position.
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

/// Writes the next of a list over what stood there from the last time.
fn write_over<T>(list: &mut Vec<T>, written: &mut usize, one: T) {
    match list.get_mut(*written) {
        Some(place) => *place = one,
        None => list.push(one),
    }
    *written += 1;
}

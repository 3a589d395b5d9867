//! `Plan`: the attention metadata of one step (slot mapping, block tables, positions, masks, and
//! slot copies that run first).
//!
//! In vLLM's words, `write_slots` is the slot mapping, `table` with `segments` is the block table,
//! and `rows[i].queries` are the query ranges. A batch row reads a list of segments in rising order
//! of position. A segment is a run of slots or a slice of the flat block table, in the session's
//! own pool or in a frozen prefix's pool.
//!
//! Plain data in deterministic order: a clone is independent of its original, and two plans are
//! equal if they say the same in the same places. A caller reuses the vectors from step to step.
//! The block tables may be shared with the cache that wrote them (`PlanTable`).
//! `tests/oracle/device.rs` checks the form of every plan.

use crate::contract::ids::{Position, SeqId, Slot, StepId};
use crate::contract::mask::Mask;
use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// A flat block table with value semantics. Clones share memory until one is changed
/// (copy-on-write), which lets the cache that wrote a table extend it for a later plan.
#[derive(Clone, Debug, Default, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct PlanTable(Option<Arc<Vec<u32>>>);

impl PlanTable {
    /// Shares the entries of a table.
    pub(crate) fn shared(entries: &Arc<Vec<u32>>) -> Self {
        Self(Some(Arc::clone(entries)))
    }

    /// Drops all entries; keeps the memory unless it is shared.
    pub fn clear(&mut self) {
        match self.0.as_mut().and_then(Arc::get_mut) {
            Some(entries) => entries.clear(),
            None => self.0 = None,
        }
    }

    /// The entries, mutable; copies them if they are shared.
    pub fn make_mut(&mut self) -> &mut Vec<u32> {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl Deref for PlanTable {
    type Target = [u32];
    #[inline]
    fn deref(&self) -> &[u32] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

/// Equal if the entries are; an empty table may or may not own memory.
impl PartialEq for PlanTable {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

/// Copies the entries first if they are shared.
impl DerefMut for PlanTable {
    fn deref_mut(&mut self) -> &mut [u32] {
        self.make_mut()
    }
}

impl From<Vec<u32>> for PlanTable {
    fn from(entries: Vec<u32>) -> Self {
        Self(Some(Arc::new(entries)))
    }
}

impl From<PlanTable> for Vec<u32> {
    fn from(table: PlanTable) -> Self {
        table.0.map_or_else(Vec::new, Arc::unwrap_or_clone)
    }
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
    pub table: PlanTable,
    /// Positions of the entries of sparse segments.
    pub read_positions: Vec<Position>,
    /// Bits of all explicit masks.
    pub mask_words: Vec<u64>,
    /// Exclusive upper bound of every slot of the session's own pool that is read, written or
    /// copied.
    pub read_bound: Slot,
}

impl Plan {
    /// Empties the plan for a step, keeping its memory. For plans written by hand; `Cache::plan`
    /// does so itself.
    pub fn reset(&mut self, step: StepId, generation: u64) {
        self.step = step;
        self.generation = generation;
        self.kind = PlanKind::Contiguous;
        self.moves.clear();
        self.rows.clear();
        self.positions.clear();
        self.write_slots.clear();
        self.segments.clear();
        self.table.clear();
        self.read_positions.clear();
        self.mask_words.clear();
        self.read_bound = 0;
    }

    /// Every entry that `row` reads, in order of position: pool, slot, position. `row` must be of
    /// this plan. Slow.
    pub fn entries<'a>(&'a self, row: &PlanRow) -> impl Iterator<Item = (PoolId, Slot, Position)> + 'a {
        self.segments[row.segments.range()].iter().flat_map(move |segment| {
            (0..segment.len).map(move |i| (segment.pool, self.slot(segment, i), self.position(segment, i)))
        })
    }

    /// Slot of entry `i` of `segment`, which must be of this plan; panics if the table ends before
    /// it.
    pub fn slot(&self, segment: &Segment, i: u32) -> Slot {
        match segment.layout {
            Layout::Run { start } => start + i,
            Layout::Table { at, block, offset } => {
                let j = i + offset;
                self.table[(at + j / block) as usize] * block + j % block
            }
        }
    }

    /// Position of entry `i` of `segment`, which must be of this plan.
    pub fn position(&self, segment: &Segment, i: u32) -> Position {
        match segment.sparse {
            Some(at) => self.read_positions[(at + i) as usize],
            None => segment.first + i,
        }
    }

    /// Whether query `query` (counted within the row) sees entry `entry` of the row's read. `row`
    /// must be of this plan, and both numbers within it.
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

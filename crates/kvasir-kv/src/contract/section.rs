//! `Section`: the attention metadata of one layer group in a step (slot mapping, block tables,
//! masks, and slot copies that run first).
//!
//! In vLLM's words, `write_slots` is the slot mapping, `table` with `segments` is the block table,
//! and `rows[i].queries` are the query ranges. A batch row reads a list of segments in rising order
//! of position. A segment is a run of slots or a slice of the flat block table, in the session's
//! own pool or in a frozen prefix's pool.
//!
//! The block tables may be shared with the cache that wrote them (`PlanTable`).
//! `tests/oracle/device.rs` checks the form of every section.

use crate::contract::ids::{PoolId, Position, SeqId, Slot};
use crate::contract::mask::Mask;
use crate::contract::plan_table::PlanTable;
use crate::contract::span::Span;
use serde::{Deserialize, Serialize};

/// Copy of one slot's stored K and V bytes, in every layer of the group, before the step runs. All
/// copies of a section read before any of them writes.
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
        /// Offset in [`Section::table`] of this segment's blocks.
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
    /// Offset in [`Section::read_positions`] of the positions, if they are not consecutive.
    pub sparse: Option<u32>,
}

/// One batch row of a section: one sequence's queries and read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRow {
    /// The sequence.
    pub seq: SeqId,
    /// Its query tokens in the flat list of the step, redirected ones included.
    pub queries: Span,
    /// Its read, as a range of [`Section::segments`] in order of position. It includes the K and V
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

/// Classification of a section: the cheapest correct way to run its attention.
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

/// Attention metadata of one layer group: slot copies, slot mapping, block tables and masks. All
/// slots are slots of the group's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Classification.
    pub kind: PlanKind,
    /// Slot copies that run before anything is written.
    pub moves: Vec<SlotCopy>,
    /// One batch row per sequence, in the order of the claim.
    pub rows: Vec<PlanRow>,
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

impl Section {
    /// Empties the section, keeping its memory.
    pub fn reset(&mut self) {
        self.kind = PlanKind::Contiguous;
        self.moves.clear();
        self.rows.clear();
        self.write_slots.clear();
        self.segments.clear();
        self.table.clear();
        self.read_positions.clear();
        self.mask_words.clear();
        self.read_bound = 0;
    }

    /// Exclusive upper bound of the slots that `moves` read or write; 0 without moves.
    pub(crate) fn moved_bound(&self) -> Slot {
        self.moves.iter().map(|rows| rows.from.max(rows.to) + 1).max().unwrap_or(0)
    }

    /// Every entry that `row` reads, in order of position: pool, slot, position. `row` must be of
    /// this section. Slow.
    pub fn entries<'a>(&'a self, row: &PlanRow) -> impl Iterator<Item = (PoolId, Slot, Position)> + 'a {
        self.segments[row.segments.range()].iter().flat_map(move |segment| {
            (0..segment.len).map(move |i| (segment.pool, self.slot(segment, i), self.position(segment, i)))
        })
    }

    /// Slot of entry `i` of `segment`, which must be of this section. Panics if the table ends
    /// before the entry.
    pub fn slot(&self, segment: &Segment, i: u32) -> Slot {
        match segment.layout {
            Layout::Run { start } => start + i,
            Layout::Table { at, block, offset } => {
                let j = i + offset;
                self.table[(at + j / block) as usize] * block + j % block
            }
        }
    }

    /// Position of entry `i` of `segment`, which must be of this section.
    pub fn position(&self, segment: &Segment, i: u32) -> Position {
        match segment.sparse {
            Some(at) => self.read_positions[(at + i) as usize],
            None => segment.first + i,
        }
    }

    /// Whether query `query` (counted within the row) sees entry `entry` of the row's read. `row`
    /// must be of this section, and both numbers within it.
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

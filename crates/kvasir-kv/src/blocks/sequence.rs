//! `Seq`: one sequence of a block cache: block table, removed ranges, draft nodes and claims in
//! flight.
//!
//! Row = position, except for unsettled draft nodes, which lie behind the last position. The fields
//! that every step reads come first, grouped by cache line.

use crate::blocks::pending::{Pending, PendingClaims};
use crate::blocks::table::Table;
use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, Position, SeqId, StepId};
use crate::shared::draft_nodes::{DraftNodes, LazyDraftNodes};
use crate::shared::lazy_vec::LazyVec;
use std::ops::Range;

/// Table entry where a removed range has freed a whole block.
pub(crate) const HOLE: BlockId = BlockId::MAX;

/// Longest sequence, in rows: rounding up to a whole block never overflows.
pub(crate) const LONGEST: u32 = u32::MAX - 256;

/// One sequence: block `i` of the table holds rows `i * block_size ..`. Row = position, except for
/// unsettled draft nodes, which lie behind the last position.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Seq {
    // Hot fields first: the first two paragraphs are one cache line each.
    /// Position after the last one, including claims in flight.
    pub(crate) next: Position,
    /// Exclusive upper bound of every block it has owned since it was opened.
    pub(crate) bound: BlockId,
    /// The last claim that named it; detects sequences that a claim names twice.
    pub(crate) mark: u64,
    /// Unsettled draft nodes.
    pub(crate) nodes: LazyDraftNodes,
    /// Holes: ranges below `next` that it does not own, sorted and not adjacent.
    pub(crate) holes: LazyVec<Range<Position>>,
    /// Preallocated blocks, the next one last.
    pub(crate) ahead: LazyVec<BlockId>,
    /// The last step that named it.
    pub(crate) last_step: Option<StepId>,

    /// Its claims in flight.
    pub(crate) pending: PendingClaims,

    /// Whether its partly filled last block may be shared, because it was truncated or copied. Only
    /// then is that checked before a write (copy-on-write).
    pub(crate) was_cut: bool,
    /// Number of leading table entries whose blocks were released because they are before the
    /// sliding window. The sequence counts their positions as owned.
    pub(crate) released: u32,
    pub(crate) table: Table,

    /// Number of leading blocks that are published.
    pub(crate) published: u32,
    /// Rows from here on were computed beside a hole or copied from elsewhere. They are no function
    /// of the tokens before them and are never published.
    pub(crate) impure_from: Position,
    /// Tenant isolation of the prefix cache (cache salt).
    pub(crate) salt: u64,
    /// Fork family: equal for sequences forked from one another.
    pub(crate) family: u64,
}

impl Seq {
    /// Resets a reused entry, keeping its memory.
    pub(crate) fn reset(&mut self, family: u64) {
        self.table.edit(Vec::clear);
        self.ahead.take();
        self.next = 0;
        self.holes.take();
        self.pending.clear();
        self.last_step = None;
        self.published = 0;
        self.impure_from = Position::MAX;
        self.nodes.get_mut().into_iter().for_each(DraftNodes::settle);
        self.salt = 0;
        self.family = family;
        self.bound = 0;
        self.was_cut = false;
        self.released = 0;
    }

    /// Whether a decode token needs no special treatment: private last block, no draft nodes,
    /// nothing preallocated.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.was_cut && self.nodes.is_none() && self.ahead.is_empty() && self.next < LONGEST
    }

    /// Rows up to the last position or unsettled node.
    pub(crate) fn end(&self) -> u32 {
        self.next + self.nodes.unsettled()
    }

    /// Number of owned positions directly below `next`, up to the last hole.
    pub(crate) fn owned_tail(&self) -> u32 {
        self.next - self.holes.last().map_or(0, |hole| hole.end)
    }

    /// Retired length, when the steps up to `retired` have retired.
    pub(crate) fn len(&self, retired: Option<StepId>) -> u32 {
        let claims = self.pending.since(retired).filter(|pending| !pending.is_tree);
        self.claimed_len() - claims.map(Pending::tokens).sum::<u32>()
    }

    /// Length including claims in flight.
    pub(crate) fn claimed_len(&self) -> u32 {
        self.next - self.holes.iter().map(|hole| hole.end - hole.start).sum::<u32>()
    }

    /// Position after the last retired one, when the steps up to `retired` have retired.
    pub(crate) fn retired_next(&self, retired: Option<StepId>) -> Position {
        let mut claims = self.pending.since(retired).filter(|pending| !pending.is_tree);
        claims.next().map_or(self.next, |pending| pending.start)
    }

    /// The rows that `step` writes; `RowGone` if a truncation has shortened them.
    #[inline]
    pub(crate) fn claimed_rows(&self, step: StepId, row: &ClaimedRow) -> Result<Pending, CacheError> {
        let whole = self
            .pending
            .of(step)
            .filter(|pending| pending.start == row.start && pending.tokens() == row.tokens);
        whole.copied().ok_or(CacheError::RowGone(row.seq))
    }

    /// Moves `count` blocks of its table, from entry `first` on, back to the preallocated ones.
    pub(crate) fn return_preallocated(&mut self, first: u32, count: u32) {
        let blocks = first as usize..(first + count) as usize;
        let ahead = self.ahead.make();
        self.table.edit(|table| {
            if blocks.end <= table.len() {
                ahead.extend(table.drain(blocks).rev());
            }
        });
    }

    /// Marks a range as owned, none of which was.
    pub(crate) fn add(&mut self, range: Range<Position>) {
        if range.start >= self.next {
            if range.start > self.next {
                self.holes.make().push(self.next..range.start);
            }
            self.next = range.end;
            return;
        }
        let Some(at) = self.holes.iter().position(|hole| hole.end >= range.end) else { return };
        let hole = self.holes[at].clone();
        let rest = [hole.start..range.start, range.end..hole.end];
        self.holes.make().splice(at..=at, rest.into_iter().filter(|rest| !rest.is_empty()));
    }

    /// Marks a range below `next` as a hole, merged with adjacent holes.
    pub(crate) fn erase(&mut self, range: Range<Position>) {
        let first = self.holes.partition_point(|hole| hole.end < range.start);
        let behind = self.holes.partition_point(|hole| hole.start <= range.end);
        let touched = &self.holes[first..behind];
        let start = touched.first().map_or(range.start, |hole| hole.start.min(range.start));
        let end = touched.last().map_or(range.end, |hole| hole.end.max(range.end));
        self.holes.make().splice(first..behind, std::iter::once(start..end));
    }

    /// The block at table entry `at`, if it has one there.
    pub(crate) fn block(&self, at: u32) -> Option<BlockId> {
        self.table.get(at).filter(|&block| block != HOLE)
    }

    /// Length after a truncation to `to`. A sequence ends with an owned position, so trailing holes
    /// are dropped.
    pub(crate) fn truncated_end(&self, to: Position) -> Position {
        let holes = self.holes.iter().rev().skip_while(|hole| hole.start >= to);
        holes.take_while(|hole| hole.end >= to).last().map_or(to, |hole| hole.start)
    }

    /// Owned ranges below `end`, in order.
    pub(crate) fn owned(&self, end: Position) -> impl Iterator<Item = Range<Position>> + '_ {
        let starts = std::iter::once(0).chain(self.holes.iter().map(|hole| hole.end));
        let ends = self.holes.iter().map(|hole| hole.start).chain(std::iter::once(end));
        let ranges = starts.zip(ends).map(move |(start, stop)| start..stop.min(end));
        ranges.filter(|range| range.start < range.end)
    }
}

/// Record of one batch row of a claimed step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimedRow {
    pub(crate) seq: SeqId,
    pub(crate) redirected: u32,
    pub(crate) tokens: u32,
    /// First row that it writes.
    pub(crate) start: u32,
    /// Preallocated blocks that it took; they follow the rows before `start`.
    pub(crate) from_ahead: u32,
    /// Blocks that its table grows by.
    pub(crate) grows: u32,
    /// Whether its table grows in the heap part (prefetched before).
    pub(crate) grows_heap: bool,
    /// Whether it replaces its shared last block by a private copy.
    pub(crate) replaces: bool,
}

/// A shared last block that a claim replaced by a private copy; the claim leases the old block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(crate) step: StepId,
    pub(crate) seq: SeqId,
    /// Its table entry.
    pub(crate) at: u32,
    pub(crate) old: BlockId,
}

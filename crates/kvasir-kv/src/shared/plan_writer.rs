//! `PlanWriter`: incremental block tables, so that a step copies only the entries added since the
//! last plan.
//!
//! A cache owns one writer. The writer keeps the block tables it wrote (`PlanTable`, copy-on-write)
//! with their layout, and extends one in place as soon as no plan holds it any more. A plan
//! therefore carries no trace of how it was written, and no other code can change a kept table.
//!
//! A table holds one slice with spare capacity per batch row, plus a scratch region:
//!
//! 1. `begin` takes the table written last that no plan holds. It is dropped if more than half of
//!    it is garbage.
//! 2. `place`, per batch row in order: an unchanged slice costs one comparison; growth within the
//!    spare capacity copies the new entries; any other change rewrites the slice at the end.
//! 3. The inline tail of each sequence's list (`TailBuffered::inline`) goes into the scratch
//!    region. A row whose tail has the offset that it had in the last step gets only the new
//!    entries.
//! 4. `end` drops the slices of rows that this plan does not have, and hands the table to the plan.
//!
//! Invariant: `rows[i]` describes the slice of batch row `i` of the plan being written, and what it
//! describes is in `table`. A plan that fails half-way drops its table. Guarded by the tests that
//! compare incremental plans with those of a writer without kept tables (`tests/blocks/plans.rs`,
//! `tests/contiguous_tree_and_cells.rs`) and by `tests/allocation.rs`.

use crate::contract::ids::{BlockId, SeqId, StepId};
use crate::contract::plan::Plan;
use crate::contract::plan_table::PlanTable;
use crate::contract::span::Span;
use crate::shared::tail_buffered::TailBuffered;
use std::ops::Range;
use std::sync::Arc;

/// Least spare capacity of a row's slice, in entries.
const LEAST_SPARE: usize = 4;

/// Least length of the scratch region, in entries.
const LEAST_SCRATCH: u32 = 64;

/// Most tables that a writer keeps: more than there are steps in flight, whose plans hold one each.
const MOST_TABLES: usize = 8;

/// Writes the plans of one cache, and keeps their block tables to extend them.
#[derive(Debug, Default)]
pub(crate) struct PlanWriter {
    /// Tables of earlier plans, the one written last at the end.
    tables: Vec<Table>,
    /// Entries that a table must hold without growing.
    reserved: usize,
}

/// A clone begins without tables: those of the original belong to another cache.
impl Clone for PlanWriter {
    fn clone(&self) -> Self {
        Self { tables: Vec::new(), reserved: self.reserved }
    }
}

/// A table that plans share, with the layout of its slices.
#[derive(Debug, Default)]
struct Table {
    entries: Arc<Vec<BlockId>>,
    layout: Layout,
}

/// Layout of a plan's flat block table.
#[derive(Debug, Default)]
struct Layout {
    /// One per placed slice, in order: one per batch row, or one per run of positions in `cells`.
    rows: Vec<Slice>,
    /// Garbage entries: capacity that belongs to no slice.
    unused: usize,
    /// The scratch region: inline tails, and entries that only one step needs.
    scratch: Span,
}

/// Where one sequence's list stands in the table.
#[derive(Clone, Copy, Debug)]
struct Slice {
    seq: SeqId,
    /// Change counter of the list when it was copied.
    changes: u32,
    /// Offset, length and capacity of its heap part.
    at: u32,
    len: u32,
    spare: u32,
    /// Offset and length of its inline tail in the scratch region.
    tail_at: u32,
    tail: u32,
}

/// Where the heap part and the inline tail of a list begin in the plan's table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) heap: u32,
    pub(crate) tail: u32,
}

/// A plan that is being written. Its table is empty until the plan is ended.
#[derive(Debug)]
pub(crate) struct OpenPlan<'p> {
    pub(crate) plan: &'p mut Plan,
    /// The table's place, empty until the plan is ended.
    shared: Arc<Vec<BlockId>>,
    table: Vec<BlockId>,
    layout: Layout,
    /// Slices placed so far.
    placed: usize,
    /// Entries of the scratch region used so far.
    used: u32,
}

impl PlanWriter {
    /// Reserves host memory for tables of plans whose `rows` rows own `blocks` blocks together.
    pub(crate) fn reserve(&mut self, blocks: usize, rows: usize) {
        // Half of a table may be garbage when a plan begins, and all may then be rewritten.
        self.reserved = 4 * (blocks + blocks / 8 + rows * (LEAST_SPARE + TailBuffered::INLINE));
    }

    /// Begins a step's plan in the memory of `plan`.
    pub(crate) fn begin<'p>(&mut self, step: StepId, generation: u64, plan: &'p mut Plan) -> OpenPlan<'p> {
        plan.reset(step, generation);
        let free = self.tables.iter_mut().rposition(|table| Arc::get_mut(&mut table.entries).is_some());
        let Table { entries: mut shared, layout } = free.map(|at| self.tables.remove(at)).unwrap_or_default();
        let table = Arc::get_mut(&mut shared).map(std::mem::take).unwrap_or_default();
        let mut open = OpenPlan { plan, shared, table, layout, placed: 0, used: 0 };
        if open.layout.unused > open.table.len() / 2 {
            open.forget();
        }
        open.table.reserve(self.reserved.saturating_sub(open.table.len()));
        open
    }

    /// Ends a plan: puts its table into it, which a later plan extends.
    pub(crate) fn end(&mut self, open: OpenPlan<'_>) {
        let OpenPlan { plan, mut shared, table, mut layout, placed, .. } = open;
        layout.drop_rows(placed..layout.rows.len());
        if let Some(entries) = Arc::get_mut(&mut shared) {
            *entries = table;
        }
        plan.table = PlanTable::shared(&shared);
        if self.tables.len() == MOST_TABLES {
            self.tables.remove(0);
        }
        self.tables.push(Table { entries: shared, layout });
    }
}

impl Layout {
    /// Drops slices, whose entries become garbage.
    fn drop_rows(&mut self, rows: Range<usize>) {
        self.unused += self.rows.drain(rows).map(|slice| slice.spare as usize).sum::<usize>();
    }
}

impl OpenPlan<'_> {
    /// Gives up a plan that failed half-way, and leaves it empty.
    pub(crate) fn abandon(self) {
        *self.plan = Plan::default();
    }

    /// Drops all slices; this plan is written in full.
    pub(crate) fn forget(&mut self) {
        let len = self.layout.scratch.len;
        self.table.clear();
        self.layout.rows.clear();
        (self.layout.unused, self.layout.scratch) = (0, Span::default());
        self.new_scratch(len);
    }

    /// Allocates a new scratch region of `len` entries at the end of the table; the old one becomes
    /// garbage.
    fn new_scratch(&mut self, len: u32) {
        self.layout.unused += self.layout.scratch.len as usize;
        self.layout.scratch = Span::new(self.table.len(), len as usize);
        self.used = 0;
        self.table.resize(self.table.len() + len as usize, 0);
    }

    /// Allocates `count` entries of the scratch region; returns their offset.
    #[inline]
    fn take_scratch(&mut self, count: u32) -> u32 {
        if self.layout.scratch.len - self.used < count {
            self.new_scratch((2 * self.layout.scratch.len).max(count).max(LEAST_SCRATCH));
        }
        let at = self.layout.scratch.start + self.used;
        self.used += count;
        at
    }

    /// Lays out entries that only this step needs in the scratch region; returns where they begin.
    pub(crate) fn place_once(&mut self, entries: impl ExactSizeIterator<Item = u32>) -> u32 {
        let at = self.take_scratch(entries.len() as u32);
        let places = &mut self.table[at as usize..at as usize + entries.len()];
        places.iter_mut().zip(entries).for_each(|(place, entry)| *place = entry);
        at
    }

    /// Prefetch by a dummy load of where the slice of batch row `row` grows. Doing so for several
    /// rows first overlaps their cache misses.
    pub(crate) fn prefetch_end(&self, row: usize) {
        if let Some(slice) = self.layout.rows.get(row) {
            std::hint::black_box(self.table.get((slice.at + slice.len) as usize).copied());
        }
    }

    /// Copies what is new of the next batch row's list into the table. `heap` and `tail` are the
    /// list's parts, `changes` its change counter.
    #[inline]
    pub(crate) fn place(&mut self, seq: SeqId, changes: u32, heap: &[BlockId], tail: &[BlockId]) -> Placed {
        let at = self.take_scratch(TailBuffered::INLINE as u32);
        let len = heap.len() as u32;
        let next = self.layout.rows.get(self.placed);
        // The common case: the heap part is unchanged.
        if next.is_none_or(|slice| (slice.seq, slice.changes, slice.len) != (seq, changes, len)) {
            self.place_heap(seq, changes, heap);
        }
        let slice = &mut self.layout.rows[self.placed];
        self.placed += 1;
        let known = if slice.tail_at == at { slice.tail } else { 0 };
        (slice.tail_at, slice.tail) = (at, tail.len() as u32);
        let heap = slice.at;
        let new = tail.get(known as usize..).unwrap_or(&[]);
        let places = &mut self.table[(at + known) as usize..][..new.len()];
        // Mostly none or one, for which a call of `memcpy` is slow.
        places.iter_mut().zip(new).for_each(|(place, entry)| *place = *entry);
        Placed { heap, tail: at }
    }

    /// Fast path of [`OpenPlan::place`] for a decode row: only the end of the tail is new. `None`,
    /// with nothing changed, if that is not so.
    #[inline]
    pub(crate) fn place_tail(
        &mut self,
        seq: SeqId,
        changes: u32,
        heap: usize,
        tail: &[BlockId],
    ) -> Option<Placed> {
        let at = self.layout.scratch.start + self.used;
        let slice = self.layout.rows.get_mut(self.placed)?;
        let is_same = (slice.seq, slice.changes, slice.len, slice.tail_at) == (seq, changes, heap as u32, at);
        if !is_same || self.layout.scratch.len - self.used < TailBuffered::INLINE as u32 {
            return None;
        }
        let known = std::mem::replace(&mut slice.tail, tail.len() as u32) as usize;
        self.placed += 1;
        self.used += TailBuffered::INLINE as u32;
        let placed = Placed { heap: slice.at, tail: at };
        let (new, from) = (tail.get(known..).unwrap_or(&[]), at as usize + known);
        let places = self.table.get_mut(from..from + new.len()).unwrap_or_default();
        places.iter_mut().zip(new).for_each(|(place, entry)| *place = *entry);
        Some(placed)
    }

    /// Slow path of [`OpenPlan::place`]: the heap part has grown, changed, or is new.
    fn place_heap(&mut self, seq: SeqId, changes: u32, heap: &[BlockId]) {
        self.drop_absent(seq);
        let (len, layout) = (heap.len() as u32, &mut self.layout);
        let Some(slice) = layout.rows.get_mut(self.placed) else {
            return layout.rows.push(write(seq, changes, heap, &mut self.table));
        };
        slice.tail = 0;
        if slice.changes != changes || len > slice.spare {
            layout.unused += slice.spare as usize;
            *slice = write(seq, changes, heap, &mut self.table);
        } else if slice.len < len {
            let (from, to) = ((slice.at + slice.len) as usize, (slice.at + len) as usize);
            self.table[from..to].copy_from_slice(&heap[slice.len as usize..]);
            slice.len = len;
        }
    }

    /// Drops the slices of rows that left the batch, until the next one is that of `seq` or the end
    /// is reached.
    fn drop_absent(&mut self, seq: SeqId) {
        let rest = self.layout.rows.get(self.placed..).unwrap_or(&[]);
        if rest.first().is_some_and(|slice| slice.seq != seq) {
            let absent = rest.iter().position(|slice| slice.seq == seq).unwrap_or(rest.len());
            self.layout.drop_rows(self.placed..self.placed + absent);
        }
    }
}

/// Writes a slice in full at the end of `table`, with spare capacity of an eighth.
fn write(seq: SeqId, changes: u32, heap: &[BlockId], table: &mut Vec<BlockId>) -> Slice {
    let at = table.len();
    let spare = heap.len() + heap.len() / 8 + LEAST_SPARE;
    table.extend_from_slice(heap);
    table.resize(at + spare, 0);
    let (at, len, spare) = (at as u32, heap.len() as u32, spare as u32);
    Slice { seq, changes, at, len, spare, tail_at: 0, tail: 0 }
}

#[cfg(test)]
mod tests {
    use crate::shared::plan_writer::*;

    /// Writes a plan of one row; returns the heap part and the tail that it placed.
    fn write(writer: &mut PlanWriter, plan: &mut Plan) -> (Vec<u32>, Vec<u32>) {
        let mut open = writer.begin(StepId(1), 0, plan);
        let placed = open.place(SeqId(1), 0, &[3, 4], &[5, 6]);
        writer.end(open);
        let part = |at: u32| plan.table[at as usize..at as usize + 2].to_vec();
        (part(placed.heap), part(placed.tail))
    }

    /// A plan that failed half-way has overwritten parts of the scratch region.
    #[test]
    fn an_unfinished_plan_invalidates_the_plan_cache() {
        let (mut writer, mut plan) = (PlanWriter::default(), Plan::default());
        let whole = (vec![3, 4], vec![5, 6]);
        assert_eq!(write(&mut writer, &mut plan), whole);
        assert_eq!(write(&mut writer, &mut plan), whole);
        let mut open = writer.begin(StepId(1), 0, &mut plan);
        open.place_once([99, 99].into_iter());
        drop(open);
        assert_eq!(write(&mut writer, &mut plan), whole);
    }

    #[test]
    fn tables_no_plan_holds_are_extended_in_place() {
        let (mut writer, mut plan) = (PlanWriter::default(), Plan::default());
        write(&mut writer, &mut plan);
        let first = plan.table.as_ptr();
        write(&mut writer, &mut plan);
        assert_eq!(plan.table.as_ptr(), first);
        let held = plan.clone();
        write(&mut writer, &mut plan);
        assert_ne!(plan.table.as_ptr(), first, "a plan that is held is not changed");
        assert_eq!(held.table.as_ptr(), first);
        plan.table[0] = 99;
        write(&mut writer, &mut plan);
        assert_ne!(plan.table[0], 99, "a change of a plan does not reach the kept table");
    }
}

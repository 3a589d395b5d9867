//! `PlanCache`: incremental block tables, so that a step copies only the entries added since the
//! last plan in the same memory.
//!
//! The plan's flat `table` holds one slice with spare capacity per batch row, plus a scratch
//! region.
//!
//! 1. `begin` keeps the memory if the same cache wrote it, the last plan was ended, and at most
//!    half is garbage; otherwise it resets.
//! 2. `place`, per batch row in order: an unchanged table costs one comparison; growth within the
//!    spare capacity copies the new entries; any other change rewrites the table at the end.
//! 3. The inline tail of each table (`TailBuffered::near`) goes into the scratch region. A row
//!    whose tail has the offset it had in the last step gets only the new entries.
//! 4. `go_on` is the decode fast path: the row differs from the last step only by the end of its
//!    inline tail.
//! 5. `end` drops the rows that this plan does not have.
//!
//! Invariant: `tables[i]` describes batch row `i` of the plan being written, and what it describes
//! is in `table`. A plan that failed half-way leaves `is_open` set, which forces a reset. Guarded
//! by the tests that compare a plan in reused memory with one in fresh memory
//! (`tests/blocks/plans.rs`, `tests/lines_and_cells.rs`) and by `tests/allocation.rs`.

use crate::contract::ids::{BlockId, SeqId};
use crate::contract::plan::Span;
use crate::shared::tail_buffered::TailBuffered;
use std::sync::Arc;

/// Identity of one cache instance; a clone is another instance.
#[derive(Debug, Default)]
pub(crate) struct Identity(Arc<()>);

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Layout of a plan's flat block table, kept from the last time it was written, so that the next
/// plan copies only the entries added since.
///
/// Each batch row's heap part has spare capacity behind it. A table that outgrows it, or changed
/// otherwise, is rewritten at the end; when more than half of the whole is garbage, everything is
/// rewritten. The inline parts, and entries that only one step needs, share one compact scratch
/// region that every step reuses.
#[derive(Clone, Debug, Default)]
pub struct PlanCache {
    /// The cache that wrote the tables.
    cache: Option<Arc<()>>,
    /// One per placed table, in order: one per batch row, or one per run of positions in `cells`.
    tables: Vec<KeptTable>,
    /// Tables of the current plan placed so far.
    rows: usize,
    /// Garbage entries: capacity that belongs to no row.
    unused: usize,
    /// The scratch region: inline parts, and entries that only one step needs.
    laid: Span,
    /// Entries of the scratch region that this step has used.
    used: u32,
    /// A plan was begun and not ended: the content of the scratch region is unknown.
    is_open: bool,
    /// Whether the plan's `rows` and `segments` are also as last written.
    has_rows: bool,
    /// How many of them this step has written.
    pub(crate) written: Progress,
}

/// Rows and segments of the current plan written so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) rows: usize,
    pub(crate) segments: usize,
}

/// Where the heap and the inline part of a table begin in the plan's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) far: u32,
    pub(crate) near: u32,
}

#[derive(Clone, Copy, Debug)]
struct KeptTable {
    seq: SeqId,
    /// Change counter of the sequence's table when it was copied.
    changes: u32,
    /// Offset, length and capacity of its heap part in the plan's table.
    at: u32,
    blocks: u32,
    room: u32,
    /// Offset and length of its inline part in the scratch region.
    near_at: u32,
    near: u32,
    /// The row's last segments are exactly its heap and its inline part, as far as they exist.
    is_plain: bool,
}

/// Always equal: plans compare by content, not by what is remembered for reuse.
impl PartialEq for PlanCache {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for PlanCache {}

impl PlanCache {
    /// Forgets all layout; the next plan is written in full.
    pub(crate) fn clear(&mut self) {
        self.cache = None;
        self.tables.clear();
        self.rows = 0;
        self.unused = 0;
        self.laid = Span::default();
        self.used = 0;
        self.is_open = false;
        self.has_rows = false;
        self.written = Progress::default();
    }

    /// Begins a plan of `cache` in the memory of an earlier one. Returns whether its `rows` and
    /// `segments` are as last written.
    pub(crate) fn begin(&mut self, cache: &Identity, table: &mut Vec<BlockId>) -> bool {
        let is_same = self.cache.as_ref().is_some_and(|of| Arc::ptr_eq(of, &cache.0));
        if !is_same || self.is_open || self.unused > table.len() / 2 {
            let laid = self.laid.len;
            self.clear();
            table.clear();
            self.cache = Some(Arc::clone(&cache.0));
            self.make_stretch(laid, table);
        }
        self.rows = 0;
        self.used = 0;
        self.is_open = true;
        self.written = Progress::default();
        self.has_rows
    }

    /// Notes that the plan's `rows` or `segments` were changed after writing.
    pub(crate) fn forget_rows(&mut self) {
        self.has_rows = false;
    }

    /// Allocates a new scratch region of `len` entries at the end of `table`; the old one becomes
    /// garbage.
    fn make_stretch(&mut self, len: u32, table: &mut Vec<BlockId>) {
        self.unused += self.laid.len as usize;
        self.laid = Span { start: table.len() as u32, len };
        self.used = 0;
        table.resize(table.len() + len as usize, 0);
    }

    /// Allocates `count` entries of the scratch region; returns their offset.
    #[inline]
    pub(crate) fn lay(&mut self, count: u32, table: &mut Vec<BlockId>) -> u32 {
        if self.laid.len - self.used < count {
            self.make_stretch((2 * self.laid.len).max(count).max(LEAST_LAID), table);
        }
        let at = self.laid.start + self.used;
        self.used += count;
        at
    }

    /// Prefetch by a dummy load of where the table of batch row `row` grows. Doing so for several
    /// rows first overlaps their cache misses.
    pub(crate) fn touch_end(&self, row: usize, table: &[BlockId]) {
        if let Some(kept) = self.tables.get(row) {
            std::hint::black_box(table.get((kept.at + kept.blocks) as usize).copied());
        }
    }

    /// Copies what is new of the next batch row's block table into `table`; returns where its heap
    /// part (`far`) and inline part (`near`) begin. `changes` is the table's change counter.
    #[inline]
    pub(crate) fn place(
        &mut self,
        seq: SeqId,
        changes: u32,
        far: &[BlockId],
        near: &[BlockId],
        table: &mut Vec<BlockId>,
    ) -> Places {
        let at = self.lay(TailBuffered::NEAR as u32, table);
        // The common case: the heap part is unchanged.
        let is_same = self
            .tables
            .get(self.rows)
            .is_some_and(|kept| (kept.seq, kept.changes, kept.blocks) == (seq, changes, far.len() as u32));
        if !is_same {
            self.place_anew(seq, changes, far, table);
        }
        let kept = &mut self.tables[self.rows];
        self.rows += 1;
        kept.is_plain = false;
        let known = if kept.near_at == at { kept.near } else { 0 };
        (kept.near_at, kept.near) = (at, near.len() as u32);
        let far = kept.at;
        if let Some(new) = near.get(known as usize..).filter(|new| !new.is_empty()) {
            let from = (at + known) as usize;
            table[from..from + new.len()].copy_from_slice(new);
        }
        Places { far, near: at }
    }

    /// Notes that the last segments of the row just placed are its heap and inline parts, which
    /// allows the fast path next time.
    pub(crate) fn note_plain(&mut self) {
        if let Some(kept) = self.tables.get_mut(self.rows - 1) {
            kept.is_plain = true;
        }
    }

    /// Decode fast path: places the next row if it is plain, was plain before, and only the end of
    /// its inline part is new. Returns false, with nothing changed, otherwise.
    #[inline]
    pub(crate) fn go_on(
        &mut self,
        seq: SeqId,
        changes: u32,
        far: usize,
        near: &[BlockId],
        table: &mut [BlockId],
    ) -> bool {
        let at = self.laid.start + self.used;
        let Some(kept) = self.tables.get_mut(self.rows) else { return false };
        let is_same = (kept.seq, kept.changes, kept.blocks, kept.near_at) == (seq, changes, far as u32, at);
        let has_same_parts = kept.is_plain && (kept.near > 0) != near.is_empty();
        if !is_same || !has_same_parts || self.laid.len - self.used < TailBuffered::NEAR as u32 {
            return false;
        }
        let known = std::mem::replace(&mut kept.near, near.len() as u32) as usize;
        self.rows += 1;
        self.used += TailBuffered::NEAR as u32;
        let (new, from) = (near.get(known..).unwrap_or(&[]), at as usize + known);
        let places = table.get_mut(from..from + new.len()).unwrap_or_default();
        places.iter_mut().zip(new).for_each(|(place, block)| *place = *block);
        true
    }

    /// Slow path: the heap part of the next row has grown, changed, or is new.
    fn place_anew(&mut self, seq: SeqId, changes: u32, far: &[BlockId], table: &mut Vec<BlockId>) {
        let count = far.len() as u32;
        self.find(seq);
        let Some(kept) = self.tables.get_mut(self.rows) else {
            return self.tables.push(write(seq, changes, far, table));
        };
        kept.near = 0;
        if kept.changes != changes || count > kept.room {
            self.unused += kept.room as usize;
            *kept = write(seq, changes, far, table);
        } else if kept.blocks < count {
            let (from, to) = ((kept.at + kept.blocks) as usize, (kept.at + count) as usize);
            table[from..to].copy_from_slice(&far[kept.blocks as usize..]);
            kept.blocks = count;
        }
    }

    /// Drops the layout of rows that left the batch, until the next one is that of `seq` or the end
    /// is reached.
    fn find(&mut self, seq: SeqId) {
        let rest = self.tables.get(self.rows..).unwrap_or(&[]);
        if rest.first().is_none_or(|kept| kept.seq == seq) {
            return;
        }
        let gone = rest.iter().position(|kept| kept.seq == seq).unwrap_or(rest.len());
        let gone = self.rows..self.rows + gone;
        self.unused += self.tables.drain(gone).map(|kept| kept.room as usize).sum::<usize>();
    }

    /// Ends a plan; drops the layout of rows that it does not have.
    pub(crate) fn end(&mut self) {
        self.unused += self.tables.drain(self.rows..).map(|kept| kept.room as usize).sum::<usize>();
        self.is_open = false;
        self.has_rows = true;
    }

    /// Upper bound of the flat table's length when the tables in use hold `blocks` in `rows` rows.
    pub(crate) fn most_entries(blocks: usize, rows: usize) -> usize {
        // Half may be garbage when a plan begins, and all may then be rewritten.
        4 * (blocks + blocks / 8 + rows * (LEAST_ROOM + TailBuffered::NEAR))
    }
}

/// Least spare capacity of a table, in entries.
const LEAST_ROOM: usize = 4;

/// Least length of the scratch region, in entries.
const LEAST_LAID: u32 = 64;

/// Writes a table in full at the end of `table`, with spare capacity of an eighth.
fn write(seq: SeqId, changes: u32, blocks: &[BlockId], table: &mut Vec<BlockId>) -> KeptTable {
    let at = table.len();
    let room = blocks.len() + blocks.len() / 8 + LEAST_ROOM;
    table.extend_from_slice(blocks);
    table.resize(at + room, 0);
    let (at, blocks, room) = (at as u32, blocks.len() as u32, room as u32);
    KeptTable { seq, changes, at, blocks, room, near_at: 0, near: 0, is_plain: false }
}

#[cfg(test)]
mod tests {
    use crate::shared::plan_cache::*;

    /// A plan that failed half-way has overwritten parts of the scratch region.
    #[test]
    fn after_a_plan_that_was_not_ended_everything_is_written_anew() {
        let (cache, mut tables, mut table) = (Identity::default(), PlanCache::default(), Vec::new());
        let write = |tables: &mut PlanCache, table: &mut Vec<BlockId>| {
            tables.begin(&cache, table);
            let places = tables.place(SeqId(1), 0, &[3, 4], &[5, 6], table);
            tables.end();
            let part = |at: u32| table[at as usize..at as usize + 2].to_vec();
            (part(places.far), part(places.near))
        };
        let whole = (vec![3, 4], vec![5, 6]);
        assert_eq!(write(&mut tables, &mut table), whole);
        assert_eq!(write(&mut tables, &mut table), whole);
        tables.begin(&cache, &mut table);
        let at = tables.lay(2, &mut table) as usize;
        table[at..at + 2].fill(99);
        assert_eq!(write(&mut tables, &mut table), whole);
    }
}

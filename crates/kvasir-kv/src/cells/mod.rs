//! `--cache cells`: a pool of single-token cells, each with a position and any number of owners
//! (llama.cpp's unified KV cache).
//!
//! It serves batches, forks that copy nothing, removal of ranges, sliding windows and draft trees
//! over one pool. Ownership is kept as a list of cells per sequence (`Entries`) and a count per
//! cell (`CellTable`). The lowest free cell is allocated first, so a single sequence fills the pool
//! from cell 0 and gets contiguous plans. `compact` restores that after fragmentation.
//!
//! Invariants: a cell is free exactly when it has no owner and no lease; a cell named by a step in
//! flight is leased until that step ends. Builds on `contract` and `shared`. Guarded by
//! `tests/random_operations.rs` (against `tests/oracle`) and `tests/contiguous_tree_and_cells.rs`.

pub(crate) mod capabilities;
pub(crate) mod check;
pub(crate) mod compact;
pub(crate) mod entries;
pub(crate) mod free;
pub(crate) mod plan;
pub(crate) mod table;
pub(crate) mod victims;

use crate::cells::entries::Entries;
use crate::cells::table::CellTable;
use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{Rewind, Sequences, Tree};
use crate::contract::error::CacheError;
use crate::contract::group::GroupId;
use crate::contract::ids::{Position, SeqId, Slot, StepId};
use crate::contract::kind::CacheKind;
use crate::contract::plan::Plan;
use crate::contract::usage::PoolUsage;
use crate::shared::draft_nodes::{DraftNodes, LazyDraftNodes};
use crate::shared::in_flight::{InFlight, InFlightStep};
use crate::shared::plan_writer::PlanWriter;
use crate::shared::sequence_table::SeqTable;
use crate::shared::slot_copies::SlotCopies;
use crate::shared::victims::OwnerChanges;

/// What one batch row of a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// Positions `start .. end`. A truncation lowers `end`.
    Positions,
    /// Draft nodes `start .. end`.
    DraftNodes,
}

/// Record of one batch row of a claimed step.
#[derive(Clone, Copy, Debug)]
struct Row {
    seq: SeqId,
    written: Written,
    /// First position or node, and the one after the last.
    start: u32,
    end: u32,
    /// Tokens claimed; more than `end - start` once a truncation has shortened the claim.
    tokens: u32,
    /// The last step before this one that named the sequence, to restore on cancel.
    before: Option<StepId>,
}

/// One sequence.
#[derive(Clone, Debug, Default)]
#[repr(C)]
struct Sequence {
    // Hot fields first.
    /// The last claim that named it; detects sequences that a claim names twice.
    seen: u64,
    /// The newest step that names it.
    last_step: Option<StepId>,
    nodes: LazyDraftNodes,
    entries: Entries,
    /// Fork family: equal for sequences forked from one another.
    family: u64,
    /// The cell of each unsettled draft node.
    node_slots: Vec<Slot>,
}

/// A pool of single-token cells, each with a position and any number of owners: batches, forks
/// without copies, rollback, sliding windows and draft trees over one pool.
///
/// The lowest free cell is allocated first, so a single sequence fills the pool from its start and
/// gets contiguous plans; everything else is planned as slot tables. `MemoryHints::compact`
/// defragments.
#[derive(Debug)]
pub struct Cells {
    shape: CacheShape,
    /// Sliding window of every layer.
    window: Option<u32>,
    cells: CellTable,
    seqs: SeqTable<Sequence>,
    /// Claimed steps; a deferred release is one lease of a cell.
    inflight: InFlight<Row, Slot>,
    moves: SlotCopies,
    /// Number of the newest fork family.
    families: u64,
    claims: u64,
    generation: u64,
    /// Scratch of the current claim: its rows, and the sequences whose list grows in its heap part
    /// (for prefetch).
    rows: Vec<Row>,
    heap_grows: Vec<SeqId>,
    owner_changes: OwnerChanges,
    writer: PlanWriter,
}

impl Cells {
    /// A cache of `capacity` cells for at most `max_sequences` live sequences. With a sliding
    /// window `w`, a token at position `p` sees only positions above `p − w`.
    pub fn new(capacity: u32, max_sequences: u32, window: Option<u32>) -> Result<Self, CacheError> {
        if window == Some(0) {
            return Err(CacheError::BadConfig("a window must be at least 1"));
        }
        Ok(Self {
            shape: CacheShape::tokens(CacheKind::Cells, capacity),
            window,
            cells: CellTable::new(capacity),
            seqs: SeqTable::new(max_sequences),
            inflight: InFlight::default(),
            moves: SlotCopies::default(),
            families: 0,
            claims: 0,
            generation: 0,
            rows: Vec::new(),
            heap_grows: Vec::new(),
            owner_changes: OwnerChanges::default(),
            writer: PlanWriter::default(),
        })
    }

    /// High-water mark: every used cell is below it.
    pub fn high_water(&self) -> u32 {
        self.cells.high_water()
    }

    /// The cells of a sequence in order of position, claims in flight included.
    pub fn owned(&self, seq: SeqId) -> Result<impl Iterator<Item = (Position, Slot)> + '_, CacheError> {
        let entries = &self.seqs.get(seq)?.entries;
        Ok(entries.iter(0..entries.len()))
    }

    /// Number of retired entries of a sequence. Computed from the steps in flight, so that `retire`
    /// need not touch every sequence.
    fn retired(&self, id: SeqId) -> Result<u32, CacheError> {
        let seq = self.seqs.get(id)?;
        let len = seq.entries.len();
        if !seq.last_step.is_some_and(|step| self.inflight.is_pending(step)) {
            return Ok(len);
        }
        let rows = self.inflight.iter().flat_map(|flight| &flight.rows);
        let claimed = rows.filter(|row| row.seq == id && row.written == Written::Positions);
        let first = claimed.map(|row| row.start).min();
        Ok(first.map_or(len, |first| seq.entries.index_of(first)))
    }

    /// Validates a claim and records its batch rows; changes nothing that a plan depends on.
    fn check_claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        self.inflight.check_claim(step)?;
        self.claims += 1;
        self.rows.clear();
        self.heap_grows.clear();
        let mut needed = 0u32;
        for row in rows {
            let seq = self.seqs.get_mut(row.seq)?;
            let again = std::mem::replace(&mut seq.seen, self.claims) == self.claims;
            let proposed = seq.nodes.proposed();
            if again || row.tokens == 0 || row.redirected > 0 || (proposed > 0 && proposed != row.tokens) {
                return Err(CacheError::BadClaim);
            }
            if proposed == 0 && seq.nodes.unsettled() > 0 {
                return Err(CacheError::Unsettled);
            }
            let start = seq.entries.next_position();
            let end = start.checked_add(row.tokens).ok_or(CacheError::BadClaim)?;
            needed = needed.saturating_add(row.tokens);
            if seq.entries.slots().is_due() {
                self.heap_grows.push(row.seq);
            }
            let written = if proposed > 0 { Written::DraftNodes } else { Written::Positions };
            let (seq, tokens, before) = (row.seq, row.tokens, seq.last_step);
            self.rows.push(Row { seq, written, start, end, tokens, before });
        }
        let available = self.cells.free();
        match needed {
            0 => Err(CacheError::BadClaim),
            _ if needed > available => Err(CacheError::Full { group: GroupId::FULL, needed, available }),
            _ => Ok(()),
        }
    }

    /// Releases one cell of a sequence: now, or when the last step that names the sequence ends.
    fn release(
        cells: &mut CellTable,
        inflight: &mut InFlight<Row, Slot>,
        last_step: Option<StepId>,
        slot: Slot,
    ) {
        match last_step.map(|step| inflight.defer(step, slot)) {
            Some(Ok(())) => cells.lease(slot),
            _ => cells.release(slot),
        }
    }

    /// Releases every cell of a sequence, draft nodes included.
    fn release_all(&mut self, seq: SeqId) -> Result<(), CacheError> {
        let s = self.seqs.get_mut(seq)?;
        let (cells, inflight) = (&mut self.cells, &mut self.inflight);
        let all = 0..s.entries.len();
        s.entries.remove(all, |slot| Self::release(cells, inflight, s.last_step, slot));
        for slot in s.node_slots.drain(..) {
            Self::release(cells, inflight, s.last_step, slot);
        }
        s.nodes.get_mut().into_iter().for_each(DraftNodes::settle);
        s.last_step = None;
        Ok(())
    }

    /// Performs the releases deferred to a step that has ended.
    fn end(&mut self, flight: InFlightStep<Row, Slot>) {
        flight.releases.iter().for_each(|&slot| self.cells.end_lease(slot));
        self.inflight.recycle(flight);
    }

    /// Shortens the claims in flight to positions below `next`: later ones will be claimed again,
    /// so these steps must not publish them.
    fn cut_rows(inflight: &mut InFlight<Row, Slot>, seq: SeqId, next: Position) {
        let rows = inflight.rows_mut().filter(|row| row.seq == seq && row.written == Written::Positions);
        rows.for_each(|row| row.end = row.end.min(next));
    }

    /// Undoes one batch row of a claim.
    fn undo_row(&mut self, row: Row) {
        let Ok(s) = self.seqs.get_mut(row.seq) else { return };
        let cells = &mut self.cells;
        s.last_step = row.before;
        match row.written {
            Written::DraftNodes => {
                s.node_slots.drain(row.start as usize..).for_each(|slot| cells.release(slot));
                s.nodes.get_mut().into_iter().for_each(DraftNodes::unclaim);
            }
            Written::Positions => {
                let claimed = s.entries.index_of(row.start)..s.entries.index_of(row.end.max(row.start));
                s.entries.remove(claimed, |slot| cells.release(slot));
                let next = s.entries.next_position();
                if next < row.start {
                    Self::cut_rows(&mut self.inflight, row.seq, next);
                }
            }
        }
    }
}

impl Cache for Cells {
    fn shape(&self) -> &CacheShape {
        &self.shape
    }

    fn usage(&self) -> PoolUsage {
        self.cells.usage()
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        let seq = self.seqs.open()?;
        self.families += 1;
        self.seqs.get_mut(seq)?.family = self.families;
        Ok(seq)
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.release_all(seq)?;
        self.generation += 1;
        self.seqs.close(seq)
    }

    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.retired(seq)
    }

    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.seqs.get(seq)?.entries.len())
    }

    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        Ok(self.seqs.get(seq)?.entries.next_position())
    }

    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        self.check_claim(step, rows)?;
        // Prefetch in a loop of its own, so that the cache misses overlap.
        for &seq in &self.heap_grows {
            self.seqs.get(seq)?.entries.slots().prefetch_end();
        }
        for row in &mut self.rows {
            let s = self.seqs.get_mut(row.seq)?;
            s.last_step = Some(step);
            match row.written {
                Written::Positions => {
                    for position in row.start..row.end {
                        if let Some(slot) = self.cells.take(position) {
                            s.entries.push_at(position, slot);
                        }
                    }
                }
                Written::DraftNodes => {
                    let (nodes, base) = (s.nodes.make().claim(), row.start);
                    (row.start, row.end) = (nodes.start, nodes.end);
                    let positions = nodes.map(|node| base + s.nodes.depth(node));
                    s.node_slots.extend(positions.filter_map(|position| self.cells.take(position)));
                }
            }
        }
        // The swap hands the flight's empty list to the next claim, so nothing is allocated.
        std::mem::swap(self.inflight.begin(step)?, &mut self.rows);
        self.moves.claim(step);
        self.generation += 1;
        Ok(())
    }

    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        self.write_plan(step, plan)
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        let Some(flight) = self.inflight.take_oldest(step)? else { return Ok(()) };
        self.moves.retire(step);
        self.end(flight);
        Ok(())
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        let flight = self.inflight.take_newest(step)?;
        // Newest cells first, so that the high-water mark falls step by step.
        flight.rows.iter().rev().for_each(|&row| self.undo_row(row));
        self.moves.cancel(step);
        self.end(flight);
        self.generation += 1;
        Ok(())
    }

    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        Ok(self)
    }

    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        Ok(self)
    }

    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        Ok(self)
    }
}

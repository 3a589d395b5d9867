//! `--cache contiguous`: one sequence, one length counter; row `i` lies in slot `i`.
//!
//! Its plans are always one run from slot 0 (the fastest single-stream path). Sliding-window layers
//! may keep ring buffers (`Rings`); a rewind below what a ring still holds is refused. A cache
//! without rings can be frozen into a `SharedPrefix` while no step is in flight. Guarded by
//! `tests/contiguous_tree_and_cells.rs` and `tests/random_operations.rs`.

use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{Inspect, MemoryHints, Rewind, VictimSearch, Victims};
use crate::contract::error::CacheError;
use crate::contract::frozen_rows::FrozenRows;
use crate::contract::group::{GroupId, Slots};
use crate::contract::ids::{BlockId, PoolId, Position, SeqId, StepId};
use crate::contract::kind::CacheKind;
use crate::contract::mask::Mask;
use crate::contract::plan::Plan;
use crate::contract::rings::Rings;
use crate::contract::section::{Layout, PlanKind, PlanRow, Segment};
use crate::contract::span::Span;
use crate::contract::usage::{BlockUse, PoolUsage};
use crate::shared::rewind_target::check_rewind_target;
use crate::shared::single_sequence::SingleSequence;

/// One sequence and a length counter: row `i` lies in slot `i`. The fastest single stream. With
/// [`Rings`], it refuses to rewind below what a ring still holds.
#[derive(Debug)]
pub struct Contiguous {
    single: SingleSequence,
    shape: CacheShape,
}

impl Contiguous {
    /// A cache of `capacity` slots.
    pub fn new(capacity: u32) -> Self {
        let shape = CacheShape::tokens(CacheKind::Contiguous, capacity);
        Self { single: SingleSequence::new(capacity), shape }
    }

    /// A cache whose sliding-window layers keep ring buffers.
    pub fn with_rings(capacity: u32, rings: Rings) -> Self {
        let mut cache = Self::new(capacity);
        cache.shape.rings = Some(rings);
        cache
    }

    /// Lowest position that every layer still holds.
    pub fn retained_from(&self) -> Position {
        self.shape.rings.as_ref().map_or(0, |rings| rings.retained_from(self.single.peak()))
    }

    /// Retired rows: K and V computed.
    pub(crate) fn rows(&self) -> u32 {
        self.single.len()
    }
}

impl Cache for Contiguous {
    fn shape(&self) -> &CacheShape {
        &self.shape
    }

    fn usage(&self) -> PoolUsage {
        self.single.usage(0)
    }

    fn generation(&self) -> u64 {
        self.single.generation()
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        self.single.open()
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.single.close(seq)
    }

    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.single.check_seq(seq)?;
        Ok(self.single.len())
    }

    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.single.check_seq(seq)?;
        Ok(self.single.claimed())
    }

    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.claimed_len(seq)
    }

    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        let row = self.single.check_claim(step, rows, 0)?;
        if let Some(longest) = self.shape.rings.as_ref().map(Rings::longest_write)
            && row.tokens > longest
        {
            return Err(CacheError::WriteTooLong { tokens: row.tokens, longest });
        }
        self.single.claim_rows(step, row)
    }

    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let row = self.single.row(step)?;
        self.single.begin_plan(step, plan, PlanKind::Contiguous);
        plan.positions.extend(row.start..row.end);
        let section = &mut plan.full;
        section.write_slots.extend(row.start..row.end);
        let (layout, len) = (Layout::Run { start: 0 }, row.end);
        section.segments.push(Segment { pool: PoolId(0), layout, len, first: 0, sparse: None });
        section.rows.push(PlanRow {
            seq: row.seq,
            queries: Span::new(0, row.tokens as usize),
            segments: Span::new(0, 1),
            read_len: row.end,
            mask: if row.tokens == 1 { Mask::None } else { Mask::Causal },
            ..PlanRow::default()
        });
        section.read_bound = row.end;
        Ok(())
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.single.retire(step).map(|_| ())
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.single.cancel(step).map(|_| ())
    }

    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        Ok(self)
    }

    fn rows_to_freeze(&self) -> Result<FrozenRows, CacheError> {
        if self.single.is_in_flight() {
            Err(CacheError::InFlight)
        } else if self.shape.rings.is_some() {
            Err(CacheError::BadConfig("a cache with rings cannot be frozen"))
        } else {
            Ok(FrozenRows { rows: self.rows(), states: Vec::new() })
        }
    }
}

impl Inspect for Contiguous {
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        self.usage().visit_contiguous(blocks);
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.single.check_seq(seq)?;
        into.extend(0..self.usage().held);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.single.check(0)
    }
}

impl MemoryHints for Contiguous {}

impl Victims for Contiguous {
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        self.single.victims(search, 0, victims)
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots {
        GroupId::FULL.slots(self.single.slots_held_by(sequences, 0))
    }
}

impl Rewind for Contiguous {
    fn rewind_floor(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        let length = self.claimed_len(seq)?;
        let lost = self.shape.rings.as_ref().map_or(0, |rings| rings.lowest_rewind(self.single.peak()));
        // A rewind to the current length drops nothing and is always possible.
        check_rewind_target(to, lost.min(length)..=length)
    }

    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        self.rewind_floor(seq, to)?;
        self.single.rewind(to);
        Ok(())
    }
}

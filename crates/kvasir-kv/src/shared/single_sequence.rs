//! `SingleSequence`: bookkeeping of one sequence whose row `i` lies in slot `i`, shared by the `contiguous`
//! and the `tree` cache.
//!
//! Invariants: `len <= claimed <= peak`, and `claimed` plus unsettled nodes is at most the
//! capacity. Slots are allocated from 0, so after `close` with a step in flight the whole pool
//! counts as leased until that step ends.

use crate::contract::cache::ClaimRow;
use crate::contract::capabilities::VictimSearch;
use crate::contract::error::CacheError;
use crate::contract::group::GroupId;
use crate::contract::ids::{SeqId, StepId};
use crate::contract::plan::Plan;
use crate::contract::section::PlanKind;
use crate::contract::usage::PoolUsage;
use crate::shared::in_flight::InFlight;
use crate::shared::sequence_table::SeqTable;
use crate::shared::victims::{TrialRelease, choose, freed_by};

/// What one step writes: rows of the sequence, or draft nodes behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Rows `start .. end`; a rewind lowers `end`.
    Rows,
    /// Draft nodes `start .. end`.
    DraftNodes,
}

/// Record of one claimed step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleSequenceRow {
    pub(crate) seq: SeqId,
    pub(crate) written: Written,
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Tokens claimed; more than `end - start` once a rewind has truncated the claim.
    pub(crate) tokens: u32,
    peak_before: u32,
}

/// One sequence whose row `i` lies in slot `i`.
#[derive(Clone, Debug)]
pub(crate) struct SingleSequence {
    capacity: u32,
    seqs: SeqTable<()>,
    /// Retired rows.
    len: u32,
    /// Rows including claims in flight.
    claimed: u32,
    /// Highest `claimed` since the sequence was opened: what rings may have overwritten.
    peak: u32,
    inflight: InFlight<SingleSequenceRow, ()>,
    /// The last step of the previous sequence, whose slots are leased until it ends.
    leased_by: Option<StepId>,
    generation: u64,
}

/// The sequence after a hypothetical release.
struct SingleSequenceTrial<'a> {
    single: &'a SingleSequence,
    held: u32,
    /// Closing the sequence frees nothing until the steps in flight retire.
    leased: bool,
    freed: u32,
}

impl TrialRelease for SingleSequenceTrial<'_> {
    fn release(&mut self, seq: SeqId, from: u32) {
        let is_ours = self.single.check_seq(seq).is_ok() && !(from == 0 && self.leased);
        self.freed = if is_ours { self.held.saturating_sub(from) } else { self.freed };
    }

    fn undo_release(&mut self, seq: SeqId) {
        self.freed = if self.single.check_seq(seq).is_ok() { 0 } else { self.freed };
    }

    fn freed(&self) -> u32 {
        self.freed
    }
}

impl SingleSequence {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            seqs: SeqTable::new(1),
            len: 0,
            claimed: 0,
            peak: 0,
            inflight: InFlight::default(),
            leased_by: None,
            generation: 0,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Raises the generation: plans may be stale.
    pub(crate) fn touch(&mut self) {
        self.generation += 1;
    }

    /// Retired rows: K and V computed.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Rows including all claims in flight.
    pub(crate) fn claimed(&self) -> u32 {
        self.claimed
    }

    /// Highest number of rows claimed since the sequence was opened.
    pub(crate) fn peak(&self) -> u32 {
        self.peak
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        !self.inflight.is_empty()
    }

    /// Whether a claimed step writes draft nodes.
    pub(crate) fn has_nodes_in_flight(&self, seq: SeqId) -> bool {
        let mut rows = self.inflight.iter().flat_map(|flight| &flight.rows);
        rows.any(|row| row.seq == seq && row.written == Written::DraftNodes)
    }

    /// Refuses every id but that of the live sequence.
    pub(crate) fn check_seq(&self, seq: SeqId) -> Result<(), CacheError> {
        self.seqs.get(seq).map(|_| ())
    }

    /// Pool usage when `extra` slots hold draft nodes. While a step of the previous sequence is in
    /// flight nothing is free, because slots are allocated from 0.
    pub(crate) fn usage(&self, extra: u32) -> PoolUsage {
        if self.is_leased() {
            return PoolUsage { leased: self.capacity, ..PoolUsage::default() };
        }
        let held = self.claimed + extra;
        PoolUsage { free: self.capacity - held, held, ..PoolUsage::default() }
    }

    fn is_leased(&self) -> bool {
        self.leased_by.is_some_and(|step| self.inflight.is_pending(step))
    }

    /// `Victims::victims` when `extra` slots hold draft nodes.
    pub(crate) fn victims(&self, search: &VictimSearch<'_>, extra: u32, victims: &mut Vec<SeqId>) -> bool {
        let leased = self.is_in_flight() && !search.leased_too;
        choose(
            &mut SingleSequenceTrial { single: self, held: self.claimed + extra, leased, freed: 0 },
            search,
            victims,
        )
    }

    /// `Victims::slots_held_by`; `extra` slots hold draft nodes.
    pub(crate) fn slots_held_by(&self, sequences: &[SeqId], extra: u32) -> u32 {
        let held = self.claimed + extra;
        freed_by(&mut SingleSequenceTrial { single: self, held, leased: false, freed: 0 }, sequences)
    }

    pub(crate) fn open(&mut self) -> Result<SeqId, CacheError> {
        self.seqs.open()
    }

    pub(crate) fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.seqs.close(seq)?;
        self.leased_by = self.inflight.iter().next_back().map(|flight| flight.step);
        (self.len, self.claimed, self.peak) = (0, 0, 0);
        self.touch();
        Ok(())
    }

    /// Checks a claim when `extra` slots behind the rows hold draft nodes; returns its one batch
    /// row.
    pub(crate) fn check_claim(
        &self,
        step: StepId,
        rows: &[ClaimRow],
        extra: u32,
    ) -> Result<ClaimRow, CacheError> {
        self.inflight.check_claim(step)?;
        let &[row] = rows else { return Err(CacheError::BadClaim) };
        self.check_seq(row.seq)?;
        if row.tokens == 0 || row.redirected > 0 {
            return Err(CacheError::BadClaim);
        }
        let available = self.usage(extra).free;
        if row.tokens <= available {
            Ok(row)
        } else {
            Err(CacheError::Full { group: GroupId::FULL, needed: row.tokens, available })
        }
    }

    /// Performs a checked claim of rows.
    pub(crate) fn claim_rows(&mut self, step: StepId, row: ClaimRow) -> Result<(), CacheError> {
        let (start, peak_before) = (self.claimed, self.peak);
        let end = start + row.tokens;
        let (seq, tokens, written) = (row.seq, row.tokens, Written::Rows);
        self.inflight.begin(step)?.push(SingleSequenceRow { seq, written, start, end, tokens, peak_before });
        self.claimed = end;
        self.peak = self.peak.max(end);
        self.touch();
        Ok(())
    }

    /// Performs a checked claim of draft nodes.
    pub(crate) fn claim_nodes(
        &mut self,
        step: StepId,
        seq: SeqId,
        nodes: std::ops::Range<u32>,
    ) -> Result<(), CacheError> {
        let (start, end, tokens) = (nodes.start, nodes.end, nodes.end - nodes.start);
        let peak_before = self.peak;
        let row = SingleSequenceRow { seq, written: Written::DraftNodes, start, end, tokens, peak_before };
        self.inflight.begin(step)?.push(row);
        self.touch();
        Ok(())
    }

    /// The record of a step, or `RowGone` if a part of its claim was truncated.
    pub(crate) fn row(&self, step: StepId) -> Result<SingleSequenceRow, CacheError> {
        let row = self.inflight.get(step)?.rows.first().copied().ok_or(CacheError::UnknownStep(step))?;
        self.check_seq(row.seq)?;
        if row.end.saturating_sub(row.start) == row.tokens {
            Ok(row)
        } else {
            Err(CacheError::RowGone(row.seq))
        }
    }

    /// Ends a step that ran; false if it had ended before.
    pub(crate) fn retire(&mut self, step: StepId) -> Result<bool, CacheError> {
        let Some(flight) = self.inflight.take_oldest(step)? else { return Ok(false) };
        for row in flight.rows.iter().filter(|row| row.written == Written::Rows) {
            if self.check_seq(row.seq).is_ok() {
                self.len = self.len.max(row.end);
            }
        }
        self.inflight.recycle(flight);
        Ok(true)
    }

    /// Undoes a claim; returns its record if the sequence is still open.
    pub(crate) fn cancel(&mut self, step: StepId) -> Result<Option<SingleSequenceRow>, CacheError> {
        let flight = self.inflight.take_newest(step)?;
        let row = flight.rows.first().copied().filter(|row| self.check_seq(row.seq).is_ok());
        if let Some(row) = row.filter(|row| row.written == Written::Rows) {
            self.claimed = self.claimed.min(row.start);
            self.peak = row.peak_before;
        }
        self.inflight.recycle(flight);
        self.touch();
        Ok(row)
    }

    /// Truncates to `to` rows, claims in flight included.
    pub(crate) fn rewind(&mut self, to: u32) {
        self.len = self.len.min(to);
        self.claimed = self.claimed.min(to);
        for row in self.inflight.rows_mut().filter(|row| row.written == Written::Rows) {
            row.end = row.end.min(to);
        }
        self.touch();
    }

    /// Appends rows that are computed already: accepted draft nodes.
    pub(crate) fn commit(&mut self, rows: u32) {
        self.len += rows;
        self.claimed += rows;
        self.peak = self.peak.max(self.claimed);
        self.touch();
    }

    /// Empties `plan` for a step.
    pub(crate) fn begin_plan(&self, step: StepId, plan: &mut Plan, kind: PlanKind) {
        plan.reset(step, self.generation);
        plan.kind = kind;
    }

    /// Consistency check; reports the first violation.
    pub(crate) fn check(&self, extra: u32) -> Result<(), String> {
        if self.len > self.claimed || self.claimed + extra > self.capacity {
            let (len, claimed, capacity) = (self.len, self.claimed, self.capacity);
            return Err(format!("length {len}, claimed {claimed}, nodes {extra}, capacity {capacity}"));
        }
        if self.claimed > self.peak {
            return Err(format!("claimed {} is above the peak {}", self.claimed, self.peak));
        }
        if self.seqs.is_empty() && self.claimed > 0 {
            return Err(format!("{} rows without a sequence", self.claimed));
        }
        let live = |row: &&SingleSequenceRow| self.check_seq(row.seq).is_ok() && row.written == Written::Rows;
        let rows = self.inflight.iter().flat_map(|flight| &flight.rows).filter(live);
        match rows.map(|row| row.end).filter(|&end| end > self.claimed).max() {
            Some(end) => Err(format!("a step writes up to row {end}, only {} are claimed", self.claimed)),
            None => Ok(()),
        }
    }
}

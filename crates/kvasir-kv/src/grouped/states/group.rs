//! `StateGroup`: the cache operations on the recurrent states of all sequences.
//!
//! A claim does the following for each of its rows:
//!
//! 1. Give the sequence a tail if it has none, and a slot `to`: that of its live state, or a new
//!    one if the live state is sealed (a checkpoint).
//! 2. Store checkpoints at `StateSequence::checkpoint_positions`: by a save for a position inside
//!    the step, by sealing `to` for its last position. A checkpoint is skipped if the pool has no
//!    room for it, so no claim fails for a checkpoint.
//! 3. Lease every slot that the row reads or writes until its step ends.
//!
//! A cancel restores the live state from before the claim: no step has overwritten it, and the
//! lease has kept its slot. Operations do not fail, because the caller has checked each with the
//! primary cache, and claims with `check_claim`.

use crate::contract::cache::ClaimRow;
use crate::contract::error::CacheError;
use crate::contract::group::{GroupId, RecomputeCosts, StateConfig};
use crate::contract::ids::{PoolId, Position, SeqId, Slot, StepId};
use crate::contract::span::Span;
use crate::contract::state_section::{StateRow, StateSave, StateSection};
use crate::contract::usage::PoolUsage;
use crate::grouped::states::checkpoint::Checkpoint;
use crate::grouped::states::in_flight::{RowInFlight, StatesInFlight, StepInFlight};
use crate::grouped::states::ledger::StateLedger;
use crate::grouped::states::sequence::{CheckpointSpacing, LiveState, StateSequence};
use crate::grouped::states::sequences::StateSequences;
use crate::grouped::states::tail_pool::TailPool;

/// The states of all sequences of a cache.
#[derive(Clone, Debug)]
pub(crate) struct StateGroup {
    pub(super) group: GroupId,
    pub(super) config: StateConfig,
    pub(super) spacing: CheckpointSpacing,
    pub(super) ledger: StateLedger,
    pub(super) tails: TailPool,
    pub(super) seqs: StateSequences,
    pub(super) in_flight: StatesInFlight,
    /// Scratch memory.
    positions: Vec<Position>,
    /// Scratch memory.
    saves: Vec<StateSave>,
}

impl StateGroup {
    /// A group without sequences. `block_size` is that of the primary cache.
    pub(crate) fn new(group: GroupId, config: StateConfig, block_size: u32) -> Result<Self, CacheError> {
        if config.live == 0 {
            return Err(CacheError::BadConfig("a model with recurrent layers needs at least one live state"));
        }
        if config.live.checked_add(config.checkpoints).is_none() {
            return Err(CacheError::BadConfig("the number of live states and checkpoints exceeds 2^32 - 1"));
        }
        let interval = config.interval.next_multiple_of(block_size);
        Ok(Self {
            group,
            config,
            spacing: CheckpointSpacing { block_size, interval },
            ledger: StateLedger::new(config.slots(), config.checkpoints),
            tails: TailPool::new(config.live),
            seqs: StateSequences::default(),
            in_flight: StatesInFlight::default(),
            positions: Vec::new(),
            saves: Vec::new(),
        })
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        self.tails.usage()
    }

    pub(crate) fn set_recompute_costs(&mut self, costs: RecomputeCosts) {
        self.ledger.set_costs(costs);
    }

    pub(crate) fn open(&mut self, seq: SeqId) {
        self.seqs.open(seq);
    }

    pub(crate) fn close(&mut self, seq: SeqId) {
        let Some(sequence) = self.seqs.close(seq) else { return };
        release_live(&mut self.ledger, sequence.live);
        release_checkpoints(&mut self.ledger, &sequence.checkpoints);
        sequence.tail.into_iter().for_each(|tail| self.tails.release(tail));
    }

    /// The ids of all sequences.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.seqs.iter().map(|(seq, _)| *seq)
    }

    /// Number of tokens that a sequence's live state and tail cover: its claimed length.
    pub(crate) fn covered_len(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.seqs.get(seq).map(StateSequence::covered_len)
    }

    /// The position and slot of every checkpoint of the sequences, in order of position.
    pub(crate) fn checkpoints(&self) -> Vec<(Position, Slot)> {
        let checkpoints = self.seqs.iter().flat_map(|(_, sequence)| &sequence.checkpoints);
        let current = checkpoints.filter(|checkpoint| self.ledger.is_current(checkpoint));
        let mut states: Vec<_> = current.map(|current| (current.position, current.slot)).collect();
        states.sort_unstable();
        states
    }

    /// Marks positions of a sequence. Seals the live state if its position is marked.
    pub(crate) fn mark(&mut self, seq: SeqId, positions: &[Position]) -> Result<(), CacheError> {
        self.seqs.get(seq)?;
        let spacing = self.spacing;
        if self.seqs.get_mut(seq).is_some_and(|sequence| sequence.mark(positions, spacing)) {
            self.seal(seq);
        }
        Ok(())
    }

    /// Makes the live state a checkpoint, if the pool has room for one.
    pub(super) fn seal(&mut self, seq: SeqId) {
        let Self { ledger, seqs, .. } = self;
        let Some(sequence) = seqs.get_mut(seq) else { return };
        let previous = sequence.last_checkpoint(Position::MAX, |checkpoint| ledger.is_current(checkpoint));
        let Some(live) = sequence.live.as_mut().filter(|live| !live.is_sealed) else { return };
        if let Some(checkpoint) = seal_live(ledger, live, previous.as_ref()) {
            sequence.insert(checkpoint);
        }
    }

    /// Checks that [`StateGroup::claim`] of these rows finds the tails and slots that it needs.
    pub(crate) fn check_claim(&self, rows: &[ClaimRow]) -> Result<(), CacheError> {
        let (mut tails, mut slots) = (0, 0);
        for row in rows {
            let sequence = self.seqs.get(row.seq)?;
            let live = sequence.live;
            // Drafts follow a live state; without one, the claim must create it.
            let has_live = live.is_some() || row.tokens > row.drafts;
            if row.drafts > row.tokens || row.drafts > self.config.tail_rows || !has_live {
                return Err(CacheError::BadClaim);
            }
            tails += u32::from(sequence.tail.is_none());
            slots += u32::from(live.is_none_or(|live| live.is_sealed));
        }
        let full = |needed, available| CacheError::Full { group: self.group, needed, available };
        if tails > self.tails.free() {
            return Err(full(tails, self.tails.free()));
        }
        if slots > 0 && slots > self.ledger.available() {
            return Err(full(slots, self.ledger.available()));
        }
        Ok(())
    }

    /// Performs a checked claim.
    pub(crate) fn claim(&mut self, step: StepId, rows: &[ClaimRow]) {
        let mut flight = self.in_flight.begin(step);
        flight.rows.extend(rows.iter().filter_map(|row| self.claim_row(row)));
        debug_assert_eq!(flight.rows.len(), rows.len(), "check_claim has checked the tails and slots");
        // Checkpoints must not take slots that live states need.
        for index in 0..flight.rows.len() {
            self.store_checkpoints(&mut flight, index);
        }
        self.in_flight.push(flight);
    }

    /// Gives a row its tail and its slot `to`, and leases them.
    fn claim_row(&mut self, claim: &ClaimRow) -> Option<RowInFlight> {
        let Self { ledger, tails, seqs, .. } = self;
        let sequence = seqs.get_mut(claim.seq)?;
        let (live_before, len_before) = (sequence.live, sequence.covered_len());
        let took_tail = sequence.tail.is_none();
        let tail = sequence.tail.or_else(|| tails.take())?;
        tails.lease(tail);
        sequence.tail = Some(tail);
        let (position, replay) = live_before.map_or((0, 0), |live| (live.position, live.tail_len));
        let commit = replay + claim.tokens - claim.drafts;
        live_before.iter().for_each(|live| ledger.lease(live.slot));
        let mut to = live_before.map_or(0, |live| live.slot);
        if commit > 0 {
            if live_before.is_none_or(|live| live.is_sealed) {
                to = ledger.take_live()?;
                live_before.iter().for_each(|live| ledger.unpin(live.slot));
            }
            ledger.lease(to);
            sequence.live = Some(LiveState {
                slot: to,
                position: position + commit,
                tail_len: claim.drafts,
                is_sealed: false,
            });
        } else if let Some(live) = &mut sequence.live {
            live.tail_len = claim.drafts;
        }
        let planned = StateRow {
            from: live_before.map(|live| (PoolId(0), live.slot)),
            to,
            tail,
            replay,
            skip: claim.redirected,
            commit,
            saves: Span::default(),
        };
        Some(RowInFlight { seq: claim.seq, planned, live_before, len_before, took_tail, is_restorable: true })
    }

    /// Stores the checkpoints of a claimed row, as far as the pool has room for them.
    fn store_checkpoints(&mut self, flight: &mut StepInFlight, index: usize) {
        let Self { ledger, seqs, positions, saves, spacing, .. } = self;
        let RowInFlight { seq, planned, live_before, .. } = flight.rows[index];
        let Some(sequence) = seqs.get_mut(seq) else { return };
        let from = live_before.map_or(0, |live| live.position);
        let to = from + planned.commit;
        positions.clear();
        saves.clear();
        let recent = sequence.checkpoint_positions(from, to, *spacing, positions);
        if let Some(displaced) = recent.and_then(|boundary| sequence.push_recent(boundary, *spacing)) {
            release_checkpoints(ledger, &[displaced]);
        }
        if !positions.is_empty() {
            sequence.drop_stale(|checkpoint| ledger.is_current(checkpoint));
        }
        for &position in positions.iter() {
            let previous = sequence.last_checkpoint(position, |checkpoint| ledger.is_current(checkpoint));
            let checkpoint = match &mut sequence.live {
                Some(live) if position == to => seal_live(ledger, live, previous.as_ref()),
                _ => ledger.store(position, previous.as_ref()).inspect(|stored| {
                    ledger.lease(stored.slot);
                    saves.push(StateSave { after: position - from, slot: stored.slot });
                }),
            };
            let Some(checkpoint) = checkpoint else { continue };
            let after = sequence.insert(checkpoint);
            if let Some(next) = after.iter().find(|next| ledger.is_current(next)) {
                ledger.set_previous(next, checkpoint.slot);
            }
        }
        saves.sort_unstable_by_key(|save| save.after);
        let span = Span::new(flight.saves.len(), saves.len());
        flight.saves.extend_from_slice(saves);
        flight.rows[index].planned.saves = span;
    }

    /// Writes the state section of a claimed step into `section`, which must be empty.
    pub(crate) fn plan(&self, step: StepId, section: &mut StateSection) {
        let Some(flight) = self.in_flight.get(step) else { return };
        section.rows.extend(flight.rows.iter().map(|row| row.planned));
        section.saves.extend_from_slice(&flight.saves);
        section.bound = self.ledger.bound();
    }

    /// Ends a step that ran.
    pub(crate) fn retire(&mut self, step: StepId) {
        let Some(flight) = self.in_flight.take_oldest(step) else { return };
        self.end_leases(&flight);
        self.in_flight.recycle(flight);
    }

    /// Undoes a claim that did not run.
    pub(crate) fn cancel(&mut self, step: StepId) {
        let Some(flight) = self.in_flight.take_newest(step) else { return };
        for row in flight.rows.iter().rev().filter(|row| row.is_restorable) {
            self.restore(row);
        }
        self.end_leases(&flight);
        self.in_flight.recycle(flight);
    }

    /// Restores the live state and the tail that a sequence had before a canceled claim.
    fn restore(&mut self, row: &RowInFlight) {
        let Self { ledger, tails, seqs, .. } = self;
        let Some(sequence) = seqs.get_mut(row.seq) else { return };
        let position = row.live_before.map_or(0, |live| live.position);
        if row.planned.commit > 0 {
            release_live(ledger, sequence.live);
            truncate_checkpoints(ledger, &mut sequence.checkpoints, position);
            match row.live_before {
                Some(before) if before.is_sealed => {
                    ledger.pin(before.slot);
                    // `push_recent` may have removed it from the list.
                    let checkpoint = ledger.checkpoint_in(before.slot);
                    if !sequence.checkpoints.contains(&checkpoint) {
                        ledger.add_owner(before.slot);
                        sequence.insert(checkpoint);
                    }
                }
                Some(before) => ledger.restore_live(before.slot),
                None => {}
            }
        }
        sequence.truncate_recent(position);
        sequence.live = row.live_before;
        match sequence.tail {
            Some(tail) if row.took_tail => {
                tails.release(tail);
                sequence.tail = None;
            }
            None if !row.took_tail => {
                tails.retake(row.planned.tail);
                sequence.tail = Some(row.planned.tail);
            }
            _ => {}
        }
    }

    fn end_leases(&mut self, flight: &StepInFlight) {
        for row in &flight.rows {
            row.live_before.iter().for_each(|live| self.ledger.end_lease(live.slot));
            flight.writes_of(row).for_each(|slot| self.ledger.end_lease(slot));
            self.tails.end_lease(row.planned.tail);
        }
    }

    /// The greatest length up to `to` at which the sequence has a state. Length 0 always has one.
    pub(crate) fn floor(&self, seq: SeqId, to: Position) -> Result<Position, CacheError> {
        let sequence = self.seqs.get(seq)?;
        match sequence.live {
            Some(live) if live.position <= to => Ok(to.min(live.position + live.tail_len)),
            _ => {
                let last = sequence.last_checkpoint(to, |checkpoint| self.ledger.is_current(checkpoint));
                Ok(last.map_or(0, |checkpoint| checkpoint.position))
            }
        }
    }

    /// The greatest block boundary up to `to` at which the sequence has a checkpoint that no step
    /// in flight writes; 0 without one. Seals the live state if it is at a block boundary up to
    /// `to`.
    pub(crate) fn checkpoint_floor(&mut self, seq: SeqId, to: Position) -> Result<Position, CacheError> {
        let spacing = self.spacing;
        let live = self.seqs.get(seq)?.live;
        if live.is_some_and(|live| live.position <= to && spacing.is_boundary(live.position)) {
            self.seal(seq);
        }
        let pending_writes = self.in_flight.pending_writes(seq);
        let is_usable = |checkpoint: &Checkpoint| {
            spacing.is_boundary(checkpoint.position) && self.ledger.is_written(checkpoint, &pending_writes)
        };
        let last = self.seqs.get(seq)?.last_checkpoint(to, is_usable);
        Ok(last.map_or(0, |last| last.position))
    }

    /// Truncates to `to`, a length that `floor` has returned.
    pub(crate) fn rewind(&mut self, seq: SeqId, to: Position) {
        for row in self.in_flight.rows_of(seq) {
            row.is_restorable &= row.len_before < to;
        }
        let live = self.seqs.get(seq).ok().and_then(|sequence| sequence.live);
        if let Some(live) = live.filter(|live| live.position <= to) {
            let has_drafts = live.tail_len > 0;
            if let Some(sequence) = self.seqs.get_mut(seq) {
                sequence.live = Some(LiveState { tail_len: to - live.position, ..live });
            }
            // Without drafts, this is no rejection: the caller stops the sequence here.
            if !has_drafts {
                self.seal_and_release_tail(seq);
            }
            return;
        }
        let Self { ledger, seqs, .. } = self;
        let Some(sequence) = seqs.get_mut(seq) else { return };
        let last = sequence.last_checkpoint(to, |checkpoint| ledger.is_current(checkpoint));
        if let Some(last) = last {
            ledger.pin(last.slot);
            ledger.touch(last.slot);
        }
        release_live(ledger, sequence.live);
        truncate_checkpoints(ledger, &mut sequence.checkpoints, to);
        sequence.truncate_positions(to);
        sequence.live = last.map(LiveState::at_checkpoint);
        self.release_tail(seq);
    }

    /// Seals the live state if it is at a block boundary and the pool has room. Releases the tail
    /// of a sequence without an unsealed live state.
    fn seal_and_release_tail(&mut self, seq: SeqId) {
        if self.covered_len(seq).is_ok_and(|len| self.spacing.is_boundary(len)) {
            self.seal(seq);
        }
        self.release_idle_tail(seq);
    }

    /// Releases the tail of a sequence if it has no unsealed live state.
    pub(crate) fn release_idle_tail(&mut self, seq: SeqId) {
        if self.seqs.get(seq).is_ok_and(|sequence| sequence.live.is_none_or(|live| live.is_sealed)) {
            self.release_tail(seq);
        }
    }

    fn release_tail(&mut self, seq: SeqId) {
        if let Some(tail) = self.seqs.get_mut(seq).and_then(|sequence| sequence.tail.take()) {
            self.tails.release(tail);
        }
    }
}

/// Makes a live state a checkpoint, which the next step reads. `None` if the pool has no room.
fn seal_live(
    ledger: &mut StateLedger,
    live: &mut LiveState,
    previous: Option<&Checkpoint>,
) -> Option<Checkpoint> {
    let checkpoint = ledger.seal(live.slot, live.position, previous)?;
    live.is_sealed = true;
    ledger.pin(live.slot);
    Some(checkpoint)
}

/// Releases the reference of a sequence to its live state.
fn release_live(ledger: &mut StateLedger, live: Option<LiveState>) {
    if let Some(live) = live {
        if live.is_sealed { ledger.unpin(live.slot) } else { ledger.remove_owner(live.slot) }
    }
}

/// Releases the references of a sequence to checkpoints. Evicted ones have none any more.
fn release_checkpoints(ledger: &mut StateLedger, checkpoints: &[Checkpoint]) {
    for checkpoint in checkpoints {
        if ledger.is_current(checkpoint) {
            ledger.remove_owner(checkpoint.slot);
        }
    }
}

/// Removes a sequence's checkpoints above `to`.
fn truncate_checkpoints(ledger: &mut StateLedger, checkpoints: &mut Vec<Checkpoint>, to: Position) {
    let count = checkpoints.partition_point(|checkpoint| checkpoint.position <= to);
    release_checkpoints(ledger, &checkpoints[count..]);
    checkpoints.truncate(count);
}

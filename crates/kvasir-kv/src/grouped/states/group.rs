//! `StateGroup`: the operations of a cache on the recurrent states of all its sequences.
//!
//! A claim, for each of its rows:
//!
//! 1. The sequence gets a seat if it has none, and a slot `to`: that of its live state, or a new one
//!    if the live state is a checkpoint.
//! 2. Where `StateSequence::wanted` says so, the row stores checkpoints: a save for a position
//!    inside the step, and `to` itself for the last position that it covers. What finds no room is
//!    left out, so no claim fails for a checkpoint.
//! 3. The row leases every slot that it names until its step ends.
//!
//! A cancel returns the live state of before: no step has overwritten it, and the lease has kept its
//! slot. The caller has checked every operation with the primary cache, and `check_claim` what
//! depends on states, so none of them fails.

use crate::contract::cache::ClaimRow;
use crate::contract::error::CacheError;
use crate::contract::group::{GroupId, StateConfig, StateCosts};
use crate::contract::ids::{PoolId, Position, SeqId, StepId};
use crate::contract::span::Span;
use crate::contract::state_section::{StateRow, StateSave, StateSection};
use crate::contract::usage::PoolUsage;
use crate::grouped::states::checkpoint::Checkpoint;
use crate::grouped::states::in_flight::{RowInFlight, StatesInFlight, StepInFlight};
use crate::grouped::states::ledger::StateLedger;
use crate::grouped::states::seats::Seats;
use crate::grouped::states::sequence::{Grid, Live, StateSequence};

/// The states of all sequences of a cache.
#[derive(Clone, Debug)]
pub(crate) struct StateGroup {
    pub(super) group: GroupId,
    pub(super) config: StateConfig,
    pub(super) grid: Grid,
    pub(super) ledger: StateLedger,
    pub(super) seats: Seats,
    /// By index of the primary cache's ids.
    pub(super) seqs: Vec<Option<(SeqId, StateSequence)>>,
    pub(super) in_flight: StatesInFlight,
    /// Scratch memory.
    wanted: Vec<Position>,
    saves: Vec<StateSave>,
}

impl StateGroup {
    /// States for sequences whose prefixes are shared in blocks of `block` tokens.
    pub(crate) fn new(group: GroupId, config: StateConfig, block: u32) -> Self {
        let interval = config.interval.next_multiple_of(block);
        Self {
            group,
            config,
            grid: Grid { block, interval },
            ledger: StateLedger::new(config.slots(), config.checkpoints),
            seats: Seats::new(config.live),
            seqs: Vec::new(),
            in_flight: StatesInFlight::default(),
            wanted: Vec::new(),
            saves: Vec::new(),
        }
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        self.seats.usage()
    }

    pub(crate) fn set_costs(&mut self, costs: StateCosts) {
        self.ledger.costs = costs;
    }

    pub(crate) fn open(&mut self, seq: SeqId) {
        if self.seqs.len() <= seq.index() {
            self.seqs.resize_with(seq.index() + 1, || None);
        }
        self.seqs[seq.index()] = Some((seq, StateSequence::default()));
    }

    pub(crate) fn close(&mut self, seq: SeqId) {
        let Some((_, sequence)) = self.seqs.get_mut(seq.index()).and_then(Option::take) else { return };
        drop_live(&mut self.ledger, sequence.live);
        disown(&mut self.ledger, &sequence.checkpoints);
        sequence.seat.into_iter().for_each(|seat| self.seats.release(seat));
    }

    /// The ids of all sequences.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.seqs.iter().flatten().map(|(seq, _)| *seq)
    }

    pub(super) fn get(&self, seq: SeqId) -> Result<&StateSequence, CacheError> {
        let found = self.seqs.get(seq.index()).and_then(Option::as_ref).filter(|(id, _)| *id == seq);
        found.map(|(_, sequence)| sequence).ok_or(CacheError::UnknownSequence(seq))
    }

    pub(super) fn get_mut(&mut self, seq: SeqId) -> Option<&mut StateSequence> {
        let found = self.seqs.get_mut(seq.index()).and_then(Option::as_mut).filter(|(id, _)| *id == seq);
        found.map(|(_, sequence)| sequence)
    }

    /// Tokens that a sequence's states cover: its claimed length.
    pub(crate) fn end(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.get(seq).map(StateSequence::end)
    }

    /// Marks positions of a sequence; a live state that is marked becomes a checkpoint now.
    pub(crate) fn mark(&mut self, seq: SeqId, at: &[Position]) -> Result<(), CacheError> {
        self.get(seq)?;
        let grid = self.grid;
        if self.get_mut(seq).is_some_and(|sequence| sequence.mark(at, grid)) {
            self.seal(seq);
        }
        Ok(())
    }

    /// Makes the live state a checkpoint, if there is room for one.
    pub(super) fn seal(&mut self, seq: SeqId) {
        let Self { ledger, seqs, .. } = self;
        let Some((_, sequence)) = seqs.get_mut(seq.index()).and_then(Option::as_mut) else { return };
        let previous = sequence.last_checkpoint(Position::MAX, |checkpoint| ledger.is_current(checkpoint));
        let Some(live) = sequence.live.as_mut().filter(|live| !live.is_sealed) else { return };
        if let Some(checkpoint) = ledger.seal(live.slot, live.at, previous.as_ref()) {
            live.is_sealed = true;
            ledger.add_end(live.slot);
            sequence.insert(checkpoint);
        }
    }

    /// Why a claim of these rows would fail for want of states.
    pub(crate) fn check_claim(&self, rows: &[ClaimRow]) -> Result<(), CacheError> {
        let (mut seats, mut slots) = (0, 0);
        for row in rows {
            let sequence = self.get(row.seq)?;
            let live = sequence.live;
            let is_first_known = live.is_some() || row.tokens > row.drafts;
            if row.drafts > row.tokens || row.drafts > self.config.tail_rows || !is_first_known {
                return Err(CacheError::BadClaim);
            }
            seats += u32::from(sequence.seat.is_none());
            slots += u32::from(live.is_none_or(|live| live.is_sealed));
        }
        let full = |needed, available| CacheError::Full { group: self.group, needed, available };
        if seats > self.seats.free() {
            return Err(full(seats, self.seats.free()));
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
        debug_assert_eq!(flight.rows.len(), rows.len(), "a checked claim finds all it needs");
        // Every row has its slot before the first checkpoint takes one.
        for at in 0..flight.rows.len() {
            self.store_checkpoints(&mut flight, at);
        }
        self.in_flight.push(flight);
    }

    /// Gives a row its seat and its slot.
    fn claim_row(&mut self, claim: &ClaimRow) -> Option<RowInFlight> {
        let Self { ledger, seats, seqs, .. } = self;
        let (_, sequence) = seqs.get_mut(claim.seq.index())?.as_mut()?;
        let (before, start, took_seat) = (sequence.live, sequence.end(), sequence.seat.is_none());
        let seat = sequence.seat.or_else(|| seats.take())?;
        seats.lease(seat);
        sequence.seat = Some(seat);
        let (at, replay) = before.map_or((0, 0), |live| (live.at, live.rows));
        let commit = replay + claim.tokens - claim.drafts;
        before.iter().for_each(|live| ledger.lease(live.slot));
        let mut to = before.map_or(0, |live| live.slot);
        if commit > 0 {
            if before.is_none_or(|live| live.is_sealed) {
                to = ledger.take_live()?;
                before.iter().for_each(|live| ledger.remove_end(live.slot));
            }
            ledger.lease(to);
            sequence.live = Some(Live { slot: to, at: at + commit, rows: claim.drafts, is_sealed: false });
        } else if let Some(live) = &mut sequence.live {
            live.rows = claim.drafts;
        }
        let row = StateRow {
            from: before.map(|live| (PoolId(0), live.slot)),
            to,
            tail: seat,
            replay,
            skip: claim.redirected,
            commit,
            saves: Span::default(),
        };
        Some(RowInFlight { seq: claim.seq, row, before, start, took_seat, is_restorable: true })
    }

    /// Stores the checkpoints of a claimed row as far as there is room.
    fn store_checkpoints(&mut self, flight: &mut StepInFlight, at: usize) {
        let Self { ledger, seqs, wanted, saves, grid, .. } = self;
        let RowInFlight { seq, row, before, .. } = flight.rows[at];
        let Some((_, sequence)) = seqs.get_mut(seq.index()).and_then(Option::as_mut) else { return };
        let from = before.map_or(0, |live| live.at);
        let to = from + row.commit;
        wanted.clear();
        saves.clear();
        let trail = sequence.wanted(from, to, *grid, wanted);
        if let Some(left) = trail.and_then(|at| sequence.follow(at, *grid)) {
            disown(ledger, &[left]);
        }
        for &at in wanted.iter() {
            let previous = sequence.last_checkpoint(at, |checkpoint| ledger.is_current(checkpoint));
            let checkpoint = match &mut sequence.live {
                Some(live) if at == to => ledger.seal(live.slot, at, previous.as_ref()).inspect(|sealed| {
                    live.is_sealed = true;
                    ledger.add_end(sealed.slot);
                }),
                _ => ledger.store(at, previous.as_ref()).inspect(|stored| {
                    ledger.lease(stored.slot);
                    saves.push(StateSave { after: at - from, slot: stored.slot });
                }),
            };
            let Some(checkpoint) = checkpoint else { continue };
            sequence.checkpoints.retain(|other| ledger.is_current(other));
            if let Some(next) = sequence.insert(checkpoint) {
                ledger.precede(&next, checkpoint.slot);
            }
        }
        saves.sort_unstable_by_key(|save| save.after);
        let span = Span::new(flight.saves.len(), saves.len());
        flight.saves.extend_from_slice(saves);
        flight.rows[at].row.saves = span;
    }

    /// Writes the section of a claimed step, which must be empty.
    pub(crate) fn plan(&self, step: StepId, section: &mut StateSection) {
        let Some(flight) = self.in_flight.get(step) else { return };
        section.rows.extend(flight.rows.iter().map(|row| row.row));
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

    /// Returns the live state that a sequence had before a claim.
    fn restore(&mut self, row: &RowInFlight) {
        let Self { ledger, seats, seqs, .. } = self;
        let found = seqs.get_mut(row.seq.index()).and_then(Option::as_mut).filter(|(id, _)| *id == row.seq);
        let Some((_, sequence)) = found else { return };
        let at = row.before.map_or(0, |live| live.at);
        if row.row.commit > 0 {
            drop_live(ledger, sequence.live);
            truncate(ledger, &mut sequence.checkpoints, at);
            match row.before {
                Some(before) if before.is_sealed => {
                    ledger.add_end(before.slot);
                    // The trail may have left it behind.
                    let checkpoint = ledger.checkpoint_in(before.slot);
                    if !sequence.checkpoints.contains(&checkpoint) {
                        ledger.own(before.slot);
                        sequence.insert(checkpoint);
                    }
                }
                Some(before) => ledger.restore_live(before.slot),
                None => {}
            }
        }
        sequence.forget_trail_behind(at);
        sequence.live = row.before;
        match sequence.seat {
            Some(seat) if row.took_seat => {
                seats.release(seat);
                sequence.seat = None;
            }
            None if !row.took_seat => {
                seats.retake(row.row.tail);
                sequence.seat = Some(row.row.tail);
            }
            _ => {}
        }
    }

    fn end_leases(&mut self, flight: &StepInFlight) {
        for row in &flight.rows {
            row.before.iter().for_each(|live| self.ledger.end_lease(live.slot));
            if row.row.commit > 0 {
                self.ledger.end_lease(row.row.to);
            }
            flight.saves_of(row).iter().for_each(|save| self.ledger.end_lease(save.slot));
            self.seats.end_lease(row.row.tail);
        }
    }

    /// The greatest length up to `to` at which the sequence has a state.
    pub(crate) fn floor(&self, seq: SeqId, to: Position) -> Result<Position, CacheError> {
        let sequence = self.get(seq)?;
        match sequence.live {
            Some(live) if live.at <= to => Ok(to.min(live.at + live.rows)),
            _ => {
                let last = sequence.last_checkpoint(to, |checkpoint| self.ledger.is_current(checkpoint));
                Ok(last.map_or(0, |checkpoint| checkpoint.at))
            }
        }
    }

    /// Truncates to `to`, a length that `floor` has returned.
    pub(crate) fn rewind(&mut self, seq: SeqId, to: Position) {
        for row in self.in_flight.rows_of(seq) {
            row.is_restorable &= row.start < to;
        }
        let live = self.get(seq).ok().and_then(|sequence| sequence.live);
        if let Some(live) = live.filter(|live| live.at <= to) {
            let rejects = live.rows > 0;
            if let Some(sequence) = self.get_mut(seq) {
                sequence.live = Some(Live { rows: to - live.at, ..live });
            }
            // Without drafts to reject, the sequence is to rest here.
            if !rejects {
                self.rest(seq);
            }
            return;
        }
        let Self { ledger, seqs, .. } = self;
        let Some((_, sequence)) = seqs.get_mut(seq.index()).and_then(Option::as_mut) else { return };
        let last = sequence.last_checkpoint(to, |checkpoint| ledger.is_current(checkpoint));
        if let Some(last) = last {
            ledger.add_end(last.slot);
            ledger.touch(last.slot);
        }
        drop_live(ledger, sequence.live);
        truncate(ledger, &mut sequence.checkpoints, to);
        sequence.forget_behind(to);
        sequence.live = last.map(|last| Live { slot: last.slot, at: last.at, rows: 0, is_sealed: true });
        self.release_seat(seq);
    }

    /// Keeps the live state as a checkpoint, if there is room, and gives the seat back.
    fn rest(&mut self, seq: SeqId) {
        if self.get(seq).is_ok_and(|sequence| sequence.end() == self.grid.floor(sequence.end())) {
            self.seal(seq);
        }
        if self.get(seq).is_ok_and(|sequence| sequence.live.is_none_or(|live| live.is_sealed)) {
            self.release_seat(seq);
        }
    }

    fn release_seat(&mut self, seq: SeqId) {
        if let Some(seat) = self.get_mut(seq).and_then(|sequence| sequence.seat.take()) {
            self.seats.release(seat);
        }
    }
}

/// A sequence gives up its live state.
fn drop_live(ledger: &mut StateLedger, live: Option<Live>) {
    if let Some(live) = live {
        if live.is_sealed { ledger.remove_end(live.slot) } else { ledger.disown(live.slot) }
    }
}

/// A sequence gives up checkpoints; evicted ones are not its own any more.
fn disown(ledger: &mut StateLedger, checkpoints: &[Checkpoint]) {
    for checkpoint in checkpoints {
        if ledger.is_current(checkpoint) {
            ledger.disown(checkpoint.slot);
        }
    }
}

/// A sequence gives up its checkpoints behind `to`.
fn truncate(ledger: &mut StateLedger, checkpoints: &mut Vec<Checkpoint>, to: Position) {
    let count = checkpoints.partition_point(|checkpoint| checkpoint.at <= to);
    disown(ledger, &checkpoints[count..]);
    checkpoints.truncate(count);
}

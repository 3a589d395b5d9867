//! `Budget` and `LiveStates`: which KV slots and live recurrent states admission and scheduling may
//! still reserve.
//!
//! `unreserved = available - reserved - scheduled`, in KV slots
//!
//! - *available*: free in the pool, or held by an evictable cached prefix (`PoolUsage`).
//! - *reserved*: granted to a running sequence and not yet claimed.
//! - *scheduled*: to be claimed by rows of the step under construction.
//!
//! Admission reserves slots, scheduling a row commits some of them, and the cache's claim makes
//! them the sequence's own. A row that is dropped before the claim is rolled back. A sequence that
//! gives up its K/V (preemption, end) gives up its reservation.
//!
//! Invariant: `Budget::reserved` is the sum of `Sequence::reserved` over all sequences. Only this
//! file changes either.
//!
//! A sequence that holds an executor row also holds one live state. Retained sequences hold none.

use crate::request::sequence::Sequence;
use kvasir_kv::blocks::BlockSize;
use kvasir_kv::{PoolUsage, StateConfig};

/// Accounts for KV slots that are granted and not yet claimed, in whole blocks.
#[derive(Debug)]
pub(crate) struct Budget {
    block: BlockSize,
    /// Sum of the reservations of all sequences.
    reserved: u32,
    /// Slots that the rows of the step under construction will claim.
    scheduled: u32,
}

/// The slots of one scheduled row, to be rolled back if the row is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commitment {
    slots: u32,
    /// The sequence's reservation before.
    reserved: u32,
}

impl Budget {
    pub(crate) fn new(block_size: u32) -> Self {
        Self { block: BlockSize::new(block_size.max(1)), reserved: 0, scheduled: 0 }
    }

    #[inline]
    pub(crate) fn block(&self) -> BlockSize {
        self.block
    }

    /// Slots reserved for running sequences and not yet claimed.
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Slots that are available, not reserved, and not scheduled.
    pub(crate) fn unreserved(&self, usage: PoolUsage) -> u32 {
        usage.available().saturating_sub(self.scheduled).saturating_sub(self.reserved)
    }

    /// Slots missing for a claim of `slots` beyond all reservations; 0 if they are available.
    pub(crate) fn missing(&self, usage: PoolUsage, slots: u32) -> u32 {
        let taken = u64::from(self.scheduled) + u64::from(self.reserved) + u64::from(slots);
        let missing = taken.saturating_sub(u64::from(usage.available()));
        missing.min(u64::from(u32::MAX)) as u32
    }

    /// Slots to claim for `tokens` more tokens of a sequence; 0 if its last block has space.
    #[inline]
    pub(crate) fn growth(&self, sequence: &Sequence, tokens: u32) -> u32 {
        let next = sequence.next_position();
        let (have, end) = (self.block.whole(next.max(sequence.ahead)), next + tokens);
        if end <= have { 0 } else { self.block.whole(end) - have }
    }

    /// Sets the reservation of a sequence to `slots`.
    pub(crate) fn reserve(&mut self, sequence: &mut Sequence, slots: u32) {
        self.reserved = self.reserved + slots - sequence.reserved;
        sequence.reserved = slots;
    }

    /// Renews the reservation of a sequence after its claimed length has changed: the slots up to
    /// the length granted at admission that it does not have yet.
    pub(crate) fn renew(&mut self, sequence: &mut Sequence) {
        let have = self.block.whole(sequence.next_position().max(sequence.ahead));
        let granted = self.block.whole(sequence.cold.reserve_to + sequence.skipped);
        self.reserve(sequence, granted.saturating_sub(have));
    }

    pub(crate) fn begin_step(&mut self) {
        self.scheduled = 0;
    }

    /// Commits `slots` to a row of the step under construction. The sequence's reservation is
    /// consumed first; only slots beyond it reduce what is unreserved.
    #[inline]
    pub(crate) fn commit(&mut self, sequence: &mut Sequence, slots: u32) -> Commitment {
        let reserved = sequence.reserved;
        let consumed = reserved.min(slots);
        sequence.reserved -= consumed;
        self.reserved -= consumed;
        self.scheduled += slots;
        Commitment { slots, reserved }
    }

    /// Undoes a commitment: its row is dropped from the step.
    pub(crate) fn roll_back(&mut self, sequence: &mut Sequence, commitment: Commitment) {
        self.reserve(sequence, commitment.reserved);
        self.scheduled -= commitment.slots;
    }
}

/// Counts live recurrent states: one per sequence that has a state and holds an executor row. A
/// live state is released only after the last step that names its sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveStates {
    /// Maximum number of live states; none is unbounded.
    limit: Option<u32>,
    /// Whether every sequence has a state, because the cache has states. Otherwise only requests
    /// with `Params::stateful` have one.
    every_sequence: bool,
    taken: u32,
}

impl LiveStates {
    /// The live states of a cache with these `states`, if any; at most `limit`.
    pub(crate) fn new(limit: Option<u32>, states: Option<StateConfig>) -> Self {
        let limits = limit.into_iter().chain(states.map(|states| states.live));
        Self { limit: limits.min(), every_sequence: states.is_some(), taken: 0 }
    }

    /// Whether a sequence needs a live state while it runs.
    pub(crate) fn is_needed_by(&self, sequence: &Sequence) -> bool {
        self.every_sequence || sequence.cold.params.stateful
    }

    /// Whether a live state is free.
    pub(crate) fn has_free(&self) -> bool {
        self.limit.is_none_or(|limit| self.taken < limit)
    }

    /// Live states in use.
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes a live state for a sequence if it needs one. The caller has checked that one is free.
    pub(crate) fn take_for(&mut self, sequence: &Sequence) {
        debug_assert!(self.has_free() || !self.is_needed_by(sequence));
        self.taken += u32::from(self.is_needed_by(sequence));
    }

    /// Releases the live state of a sequence, if it has one.
    pub(crate) fn release_for(&mut self, sequence: &Sequence) {
        self.taken -= u32::from(self.is_needed_by(sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::Request;

    fn usage(free: u32) -> PoolUsage {
        PoolUsage { free, ..PoolUsage::default() }
    }

    #[test]
    fn commit_consumes_the_reservation_and_roll_back_restores_it() {
        let mut budget = Budget::new(4);
        let mut sequence = Sequence::new(Request::default());
        budget.reserve(&mut sequence, 8);
        assert_eq!((budget.unreserved(usage(20)), budget.missing(usage(20), 16)), (12, 4));
        let commitment = budget.commit(&mut sequence, 12);
        assert_eq!((sequence.reserved, budget.reserved(), budget.unreserved(usage(20))), (0, 0, 8));
        budget.roll_back(&mut sequence, commitment);
        assert_eq!((sequence.reserved, budget.reserved(), budget.unreserved(usage(20))), (8, 8, 12));
    }

    #[test]
    fn renewed_reservation_covers_granted_unclaimed_slots() {
        let mut budget = Budget::new(4);
        let mut sequence = Sequence::new(Request::default());
        (sequence.cold.reserve_to, sequence.claimed) = (21, 6);
        assert_eq!([1, 2, 3, 7].map(|tokens| budget.growth(&sequence, tokens)), [0, 0, 4, 8]);
        budget.renew(&mut sequence);
        assert_eq!(sequence.reserved, 16);
        sequence.ahead = 24;
        budget.renew(&mut sequence);
        assert_eq!((sequence.reserved, budget.growth(&sequence, 18)), (0, 0));
    }

    #[test]
    fn released_live_states_can_be_taken_again() {
        let plain = Sequence::new(Request::default());
        let mut stateful = plain.clone();
        stateful.cold.params.stateful = true;
        let mut states = LiveStates::new(Some(1), None);
        states.take_for(&plain);
        states.take_for(&stateful);
        assert!(!states.has_free() && states.taken() == 1);
        states.release_for(&plain);
        states.release_for(&stateful);
        assert!(states.has_free() && states.taken() == 0);
        let mut unbounded = LiveStates::new(None, None);
        assert!((0..9).all(|_| {
            unbounded.take_for(&stateful);
            unbounded.has_free()
        }));
    }

    #[test]
    fn every_sequence_of_a_cache_with_states_needs_one() {
        let config = StateConfig { live: 2, checkpoints: 8, tail_rows: 4, interval: 0 };
        let plain = Sequence::new(Request::default());
        let mut states = LiveStates::new(None, Some(config));
        states.take_for(&plain);
        assert!(states.has_free());
        states.take_for(&plain);
        assert!(!states.has_free());
        assert!(!LiveStates::new(Some(0), Some(config)).has_free());
    }
}

//! `LeasedCopies`: slot copies that hold a lease on their source and destination blocks until the
//! step that carries them has retired.
//!
//! Invariant: a block that a pending copy reads or writes is never allocated again, even if its
//! owner has released it. Copies into a block without owners are dropped, because their result
//! would never be read.

use crate::blocks::index::Index;
use crate::blocks::ledger::Ledger;
use crate::contract::ids::{BlockId, StepId};
use crate::contract::section::SlotCopy;
use crate::shared::slot_copies::SlotCopies;

/// Slot copies, each of which leases its source and destination block until the step that carries
/// it has retired.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeasedCopies {
    moves: SlotCopies,
    block_size: u32,
    /// Scratch memory: the waiting copies before a change.
    before: Vec<SlotCopy>,
    /// Claimed steps that carry copies.
    unretired: Vec<StepId>,
}

impl LeasedCopies {
    pub(crate) fn new(block_size: u32) -> Self {
        Self { block_size, ..Self::default() }
    }

    /// Whether no copy waits or is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.moves.waiting().is_empty() && self.unretired.is_empty()
    }

    /// Adds one operation's copies for the next step.
    pub(crate) fn push<I: Index>(&mut self, ledger: &mut Ledger<I>, moves: &[SlotCopy]) {
        self.change(ledger, |waiting| waiting.push(moves));
    }

    /// Assigns all waiting copies to `step`.
    pub(crate) fn claim(&mut self, step: StepId) {
        if !self.moves.waiting().is_empty() {
            self.moves.claim(step);
            self.unretired.push(step);
        }
    }

    /// The copies that `step` carries.
    pub(crate) fn of(&self, step: StepId) -> &[SlotCopy] {
        self.moves.of(step)
    }

    /// The copies of `step` have run: ends their leases.
    pub(crate) fn retire<I: Index>(&mut self, ledger: &mut Ledger<I>, step: StepId) {
        self.unretired.retain(|&unretired| unretired != step);
        for rows in self.moves.of(step) {
            ledger.end_lease(rows.from / self.block_size);
            ledger.end_lease(rows.to / self.block_size);
        }
        self.moves.retire(step);
    }

    /// The step was canceled: its copies wait again.
    pub(crate) fn cancel<I: Index>(&mut self, ledger: &mut Ledger<I>, step: StepId) {
        self.unretired.retain(|&unretired| unretired != step);
        let carried = self.moves.of(step).to_vec();
        self.change(ledger, |moves| moves.cancel(step));
        for rows in carried {
            ledger.end_lease(rows.from / self.block_size);
            ledger.end_lease(rows.to / self.block_size);
        }
    }

    /// Drops waiting copies into a block whose last owner releases it: their result will not be
    /// read.
    pub(crate) fn drop_into<I: Index>(&mut self, ledger: &mut Ledger<I>, block: BlockId) {
        let gone = block * self.block_size..(block + 1) * self.block_size;
        if self.moves.waiting().iter().any(|rows| gone.contains(&rows.to)) {
            self.change(ledger, |moves| moves.drop_waiting(|rows| gone.contains(&rows.to)));
        }
    }

    /// Drops waiting copies into blocks without owners: the owners closed while a step carried the
    /// copies, and the step was canceled.
    pub(crate) fn drop_unowned<I: Index>(&mut self, ledger: &mut Ledger<I>) {
        let into = self.moves.waiting().iter().map(|rows| rows.to / self.block_size);
        let gone: Vec<BlockId> = into.filter(|&block| ledger.uses(block).owners == 0).collect();
        if !gone.is_empty() {
            let block_size = self.block_size;
            self.change(ledger, |moves| moves.drop_waiting(|rows| gone.contains(&(rows.to / block_size))));
        }
    }

    /// Whether a pending copy still has to fill rows of `block`.
    pub(crate) fn fills(&self, block: BlockId) -> bool {
        self.all().any(|rows| rows.to / self.block_size == block)
    }

    /// Every lease that the copies hold.
    pub(crate) fn leases(&self) -> impl Iterator<Item = BlockId> {
        self.all().flat_map(|rows| [rows.from / self.block_size, rows.to / self.block_size])
    }

    fn all(&self) -> impl Iterator<Item = &SlotCopy> {
        self.unretired.iter().flat_map(|&step| self.moves.of(step)).chain(self.moves.waiting())
    }

    /// Changes the waiting copies and their leases. New leases begin before old ones end, so that
    /// no block is free in between.
    fn change<I: Index>(&mut self, ledger: &mut Ledger<I>, change: impl FnOnce(&mut SlotCopies)) {
        self.before.clear();
        self.before.extend_from_slice(self.moves.waiting());
        change(&mut self.moves);
        for rows in self.moves.waiting() {
            ledger.lease(rows.from / self.block_size);
            ledger.lease(rows.to / self.block_size);
        }
        for rows in &self.before {
            ledger.end_lease(rows.from / self.block_size);
            ledger.end_lease(rows.to / self.block_size);
        }
    }
}

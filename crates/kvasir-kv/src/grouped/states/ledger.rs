//! `StateLedger`: content and reference counts of each slot of the state pool, and which checkpoint is
//! evicted for another one.
//!
//! A slot is *live* or a *checkpoint*, each with reference counts:
//!
//! - *owners*: sequences whose lists have it, or the sequence whose live state it is;
//! - *leases*: rows of steps in flight that read or write it;
//! - *ends*: sequences that continue from this checkpoint;
//! - an *anchor* makes a checkpoint findable by the content of the prefix cache.
//!
//! Invariants: a slot without owner, lease and anchor is free. At most `max_checkpoints` are
//! checkpoints. A checkpoint with a lease or an end is not evicted; any other one may be, owned or
//! not. Evicted is the least `recompute / (1 + age)`: `recompute` is the cost of the positions from
//! the checkpoint before it, which a removal widens; age counts checkpoints stored since its last
//! use. So checkpoints thin out with age.

use crate::contract::group::{Anchor, StateCosts};
use crate::contract::ids::{Position, Slot};
use crate::grouped::states::checkpoint::Checkpoint;
use crate::shared::id_set::IdSet;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// What a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    #[default]
    Free,
    Live,
    Checkpoint,
}

/// One slot of the pool.
#[derive(Clone, Copy, Debug, Default)]
struct StateSlot {
    role: Role,
    uses: StateUses,
    anchor: Option<Anchor>,
    /// Of a checkpoint: tokens that it covers, its number, and the checkpoint before it.
    at: Position,
    number: u64,
    previous: Option<Slot>,
    /// Checkpoints stored when it was used last.
    used_at: u64,
}

/// Reference counts of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateUses {
    pub(crate) owners: u32,
    pub(crate) leases: u32,
    pub(crate) ends: u32,
}

/// Reference counts, roles and anchors of all slots.
#[derive(Clone, Debug)]
pub(crate) struct StateLedger {
    slots: Vec<StateSlot>,
    free: IdSet,
    by_anchor: HashMap<Anchor, Slot, BuildHasherDefault<DefaultHasher>>,
    checkpoints: u32,
    max_checkpoints: u32,
    /// Checkpoints stored so far: their numbers, and the clock of their ages.
    stored: u64,
    pub(crate) costs: StateCosts,
}

impl StateLedger {
    pub(crate) fn new(slots: u32, max_checkpoints: u32) -> Self {
        let mut free = IdSet::new(slots);
        (0..slots).for_each(|slot| _ = free.insert(slot));
        Self {
            slots: vec![StateSlot::default(); slots as usize],
            free,
            by_anchor: HashMap::default(),
            checkpoints: 0,
            max_checkpoints,
            stored: 0,
            costs: StateCosts::default(),
        }
    }

    /// Whether a reference still names the state that it named at first.
    pub(crate) fn is_current(&self, checkpoint: &Checkpoint) -> bool {
        let slot = &self.slots[checkpoint.slot as usize];
        slot.role == Role::Checkpoint && slot.number == checkpoint.number
    }

    /// The checkpoint in a slot.
    pub(crate) fn checkpoint_in(&self, slot: Slot) -> Checkpoint {
        let StateSlot { at, number, .. } = self.slots[slot as usize];
        Checkpoint { at, slot, number }
    }

    /// Slots that live states can take: free ones, and checkpoints that may be evicted.
    pub(crate) fn available(&self) -> u32 {
        self.free.len() + self.slots.iter().filter(|slot| is_evictable(slot)).count() as u32
    }

    /// Takes a slot for a live state with one owner, if need be of an evicted checkpoint.
    pub(crate) fn take_live(&mut self) -> Option<Slot> {
        if self.free.len() == 0 {
            let victim = self.least_worth()?;
            self.evict(victim);
        }
        let slot = self.free.first()?;
        self.free.remove(slot);
        let uses = StateUses { owners: 1, ..StateUses::default() };
        self.slots[slot as usize] = StateSlot { role: Role::Live, uses, ..StateSlot::default() };
        Some(slot)
    }

    /// Stores a checkpoint in a slot of its own, with one owner. `previous` is the checkpoint before
    /// it. `None` if no other one is worth less.
    pub(crate) fn store(&mut self, at: Position, previous: Option<&Checkpoint>) -> Option<Checkpoint> {
        let previous = previous.filter(|previous| self.is_current(previous)).map(|previous| previous.slot);
        let before = previous.and_then(|previous| self.slots[previous as usize].previous);
        if !self.make_room(at, previous) {
            return None;
        }
        let slot = self.free.first()?;
        self.free.remove(slot);
        self.slots[slot as usize].uses.owners = 1;
        Some(self.becomes_checkpoint(slot, at, [previous, before]))
    }

    /// Makes a live state a checkpoint. `None` if no other one is worth less.
    pub(crate) fn seal(
        &mut self,
        slot: Slot,
        at: Position,
        previous: Option<&Checkpoint>,
    ) -> Option<Checkpoint> {
        debug_assert_eq!(self.slots[slot as usize].role, Role::Live);
        let previous = previous.filter(|previous| self.is_current(previous)).map(|previous| previous.slot);
        let before = previous.and_then(|previous| self.slots[previous as usize].previous);
        self.make_room(at, previous).then(|| self.becomes_checkpoint(slot, at, [previous, before]))
    }

    /// `before` are the checkpoint before it and the one before that: making room may have evicted
    /// the first.
    fn becomes_checkpoint(&mut self, slot: Slot, at: Position, before: [Option<Slot>; 2]) -> Checkpoint {
        self.checkpoints += 1;
        self.stored += 1;
        let (number, uses) = (self.stored, self.slots[slot as usize].uses);
        let is_kept = |before: &Slot| self.slots[*before as usize].role == Role::Checkpoint;
        let previous = before.into_iter().flatten().find(is_kept);
        self.slots[slot as usize] =
            StateSlot { role: Role::Checkpoint, uses, anchor: None, at, number, previous, used_at: number };
        Checkpoint { at, slot, number }
    }

    /// Returns a slot that a canceled step would have written to the sequence whose live state it
    /// held before. Only that step refers to it.
    pub(crate) fn restore_live(&mut self, slot: Slot) {
        let state = self.slots[slot as usize];
        debug_assert!(state.uses.owners == 0 && state.uses.leases > 0 && state.anchor.is_none());
        if state.role == Role::Checkpoint {
            self.forget(slot);
        }
        let uses = StateUses { owners: 1, ..state.uses };
        self.slots[slot as usize] = StateSlot { role: Role::Live, uses, ..StateSlot::default() };
    }

    /// Whether a new checkpoint may be stored, after evicting one that is worth less if need be.
    fn make_room(&mut self, at: Position, previous: Option<Slot>) -> bool {
        if self.checkpoints < self.max_checkpoints {
            return true;
        }
        let Some(victim) = self.least_worth() else { return false };
        let from = previous.map_or(0, |previous| self.slots[previous as usize].at);
        let worth = Worth { recompute: self.costs.recompute(from, at), age: 0 };
        if worth < self.worth(victim) {
            return false;
        }
        self.evict(victim);
        true
    }

    /// The evictable checkpoint that is worth least; of equal ones the oldest.
    fn least_worth(&self) -> Option<Slot> {
        let evictable = (0..).zip(&self.slots).filter(|(_, slot)| is_evictable(slot));
        let worth = evictable.map(|(at, slot)| (self.worth(at), slot.number, at));
        worth.min().map(|(_, _, at)| at)
    }

    fn worth(&self, slot: Slot) -> Worth {
        let state = &self.slots[slot as usize];
        let from = state.previous.map_or(0, |previous| self.slots[previous as usize].at);
        Worth { recompute: self.costs.recompute(from, state.at), age: self.stored - state.used_at }
    }

    /// Frees a checkpoint that no step and no end of a sequence needs; its owners lose it.
    fn evict(&mut self, slot: Slot) {
        debug_assert!(is_evictable(&self.slots[slot as usize]));
        self.forget(slot);
        self.slots[slot as usize] = StateSlot::default();
        self.free.insert(slot);
    }

    /// Ends the life of a checkpoint: no anchor leads to it, and the gap of the next one widens.
    fn forget(&mut self, slot: Slot) {
        let StateSlot { anchor, previous, .. } = self.slots[slot as usize];
        if let Some(anchor) = anchor {
            self.by_anchor.remove(&anchor);
        }
        for state in &mut self.slots {
            if state.previous == Some(slot) {
                state.previous = previous;
            }
        }
        self.checkpoints -= 1;
    }

    /// Frees a slot to which nothing refers any more.
    fn free_if_unused(&mut self, slot: Slot) {
        let state = self.slots[slot as usize];
        if state.uses == StateUses::default() && state.anchor.is_none() {
            if state.role == Role::Checkpoint {
                self.forget(slot);
            }
            self.slots[slot as usize] = StateSlot::default();
            self.free.insert(slot);
        }
    }

    /// `slot` is the checkpoint before `next` from now on.
    pub(crate) fn precede(&mut self, next: &Checkpoint, slot: Slot) {
        if self.is_current(next) {
            self.slots[next.slot as usize].previous = Some(slot);
        }
    }

    pub(crate) fn own(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.owners += 1;
    }

    pub(crate) fn disown(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.owners -= 1;
        self.free_if_unused(slot);
    }

    pub(crate) fn lease(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.leases += 1;
    }

    pub(crate) fn end_lease(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.leases -= 1;
        self.free_if_unused(slot);
    }

    /// A sequence continues from this checkpoint: it is not evicted.
    pub(crate) fn add_end(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.ends += 1;
    }

    pub(crate) fn remove_end(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.ends -= 1;
        self.free_if_unused(slot);
    }

    /// Counts as a use for the eviction order.
    pub(crate) fn touch(&mut self, slot: Slot) {
        self.slots[slot as usize].used_at = self.stored;
    }

    /// The checkpoint at an anchor's end.
    pub(crate) fn anchored(&self, anchor: Anchor) -> Option<Checkpoint> {
        self.by_anchor.get(&anchor).map(|&slot| self.checkpoint_in(slot))
    }

    /// Makes a checkpoint findable, unless the anchor or the checkpoint has a partner.
    pub(crate) fn link(&mut self, slot: Slot, anchor: Anchor) {
        let state = &mut self.slots[slot as usize];
        if state.anchor.is_none() && !self.by_anchor.contains_key(&anchor) {
            state.anchor = Some(anchor);
            self.by_anchor.insert(anchor, slot);
        }
    }

    /// The content of an anchor cannot be found any more.
    pub(crate) fn unlink(&mut self, anchor: Anchor) {
        if let Some(slot) = self.by_anchor.remove(&anchor) {
            self.slots[slot as usize].anchor = None;
            self.free_if_unused(slot);
        }
    }

    /// Exclusive upper bound of all slots.
    pub(crate) fn bound(&self) -> Slot {
        self.slots.len() as Slot
    }

    /// Compares all counts with `expected`, and checks roles, anchors and the free list.
    pub(crate) fn check(&self, expected: &[StateUses]) -> Result<(), String> {
        let mut checkpoints = 0;
        for (at, (slot, want)) in (0..).zip(self.slots.iter().zip(expected)) {
            if slot.uses != *want {
                return Err(format!("state slot {at} counts {:?}, its users are {want:?}", slot.uses));
            }
            let is_used = slot.uses != StateUses::default() || slot.anchor.is_some();
            if is_used == self.free.contains(at) || is_used != (slot.role != Role::Free) {
                return Err(format!("state slot {at} is {slot:?}, free: {}", self.free.contains(at)));
            }
            if slot.anchor.is_some_and(|anchor| self.by_anchor.get(&anchor) != Some(&at)) {
                return Err(format!("state slot {at} is not at its anchor"));
            }
            let before = slot.previous.map(|previous| &self.slots[previous as usize]);
            if before.is_some_and(|before| before.role != Role::Checkpoint || before.at > slot.at) {
                return Err(format!("the checkpoint before state slot {at} is {before:?}"));
            }
            checkpoints += u32::from(slot.role == Role::Checkpoint);
        }
        let anchored = self.slots.iter().filter(|slot| slot.anchor.is_some()).count();
        if anchored != self.by_anchor.len() {
            return Err(format!("{} anchors for {anchored} states", self.by_anchor.len()));
        }
        if checkpoints != self.checkpoints || checkpoints > self.max_checkpoints {
            return Err(format!("{checkpoints} checkpoints of {}", self.max_checkpoints));
        }
        Ok(())
    }
}

fn is_evictable(slot: &StateSlot) -> bool {
    slot.role == Role::Checkpoint && slot.uses.leases == 0 && slot.uses.ends == 0
}

/// Value of a checkpoint: `recompute / (1 + age)`.
#[derive(Clone, Copy, Debug)]
struct Worth {
    recompute: u64,
    age: u64,
}

impl Ord for Worth {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let scaled = |a: u64, b: u64| u128::from(a) * (u128::from(b) + 1);
        scaled(self.recompute, other.age).cmp(&scaled(other.recompute, self.age))
    }
}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Worth {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Worth {}

#[cfg(test)]
mod tests {
    use crate::grouped::states::ledger::*;

    /// A ledger with findable checkpoints at these positions, each without owners.
    fn filled(positions: &[Position], max: u32) -> (StateLedger, Vec<Checkpoint>) {
        let mut ledger = StateLedger::new(max + 1, max);
        let mut stored: Vec<Checkpoint> = Vec::new();
        for &at in positions {
            let checkpoint = ledger.store(at, stored.last()).unwrap();
            ledger.link(checkpoint.slot, Anchor(u64::from(at)));
            ledger.disown(checkpoint.slot);
            stored.push(checkpoint);
        }
        (ledger, stored)
    }

    #[test]
    fn the_cheapest_to_recompute_is_evicted() {
        let (mut ledger, stored) = filled(&[100, 110, 300], 3);
        let new = ledger.store(500, stored.last()).unwrap();
        assert_eq!(ledger.anchored(Anchor(110)), None);
        assert!(ledger.anchored(Anchor(100)).is_some() && ledger.anchored(Anchor(300)).is_some());
        assert!(ledger.is_current(&new) && !ledger.is_current(&stored[1]));
        // The gap of 300 is now 200 positions wide, those of 100 and 500 are 100 and 200.
        assert_eq!(ledger.worth(stored[2].slot), Worth { recompute: 100, age: 0 });
    }

    #[test]
    fn a_checkpoint_worth_less_than_all_others_is_not_stored() {
        let (mut ledger, stored) = filled(&[100, 200], 2);
        assert_eq!(ledger.store(201, stored.last()), None);
        assert_eq!(ledger.checkpoints, 2);
        stored.iter().for_each(|checkpoint| ledger.lease(checkpoint.slot));
        assert_eq!(ledger.store(9000, stored.last()), None, "leased checkpoints stay");
    }

    #[test]
    fn use_makes_young_again() {
        let (mut ledger, stored) = filled(&[100, 200, 300], 3);
        ledger.touch(stored[0].slot);
        ledger.store(400, stored.last()).unwrap();
        assert_eq!(ledger.anchored(Anchor(200)), None);
    }

    #[test]
    fn an_unlinked_checkpoint_without_owners_is_free() {
        let (mut ledger, stored) = filled(&[100, 200], 2);
        ledger.own(stored[1].slot);
        ledger.unlink(Anchor(100));
        ledger.unlink(Anchor(200));
        assert_eq!((ledger.checkpoints, ledger.free.len()), (1, 2));
        ledger.disown(stored[1].slot);
        assert_eq!((ledger.checkpoints, ledger.free.len()), (0, 3));
        ledger.check(&[StateUses::default(); 3]).unwrap();
    }
}

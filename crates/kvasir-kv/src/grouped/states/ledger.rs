//! `StateLedger`: content and reference counts of each slot of the state pool, and the eviction of
//! checkpoints.
//!
//! A slot is free, a *live* state or a *checkpoint*. Its references are:
//!
//! - *owners*: the sequence whose live state it is, or the sequences that list the checkpoint;
//! - *leases*: rows of steps in flight that read or write it;
//! - *pins*: sequences whose next step reads this checkpoint;
//! - an *anchor*, through which prefix lookups find the checkpoint.
//!
//! Invariants:
//!
//! - A slot without owner, lease, pin and anchor is free.
//! - At most `max_checkpoints` slots are checkpoints.
//! - A checkpoint with a lease or a pin is not evicted; any other one may be, even one with owners.
//!
//! The victim is the checkpoint with the lowest `recompute / (1 + age)`. `recompute` is the cost of
//! the positions since the previous checkpoint, which grows when that one is evicted. `age` is the
//! number of checkpoints stored since its last use. So old checkpoints become sparser.
//!
//! A pool may hold 100,000 checkpoints of a small model, so no operation but `check` is linear in
//! the slots: `KineticTournament` finds the victim, and `CheckpointTree` the checkpoints whose
//! `recompute` changes with an eviction. New costs change all values, so they are applied only once
//! as many checkpoints as there are slots were stored since the last application, which takes
//! amortized constant time. Claims allocate nothing unless KV events are recorded.

use crate::contract::group::{Anchor, RecomputeCosts};
use crate::contract::ids::{Position, Slot};
use crate::contract::kv_event::KvEvent;
use crate::grouped::states::checkpoint::Checkpoint;
use crate::grouped::states::checkpoint_log::CheckpointLog;
use crate::grouped::states::checkpoint_tree::CheckpointTree;
use crate::grouped::states::kinetic_tournament::{Contender, KineticTournament};
use crate::shared::id_set::IdSet;
use crate::shared::recent_set::RecentSet;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// What a slot of the pool holds.
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
    /// Number of tokens that the checkpoint covers.
    position: Position,
    /// Number of the checkpoint; see [`Checkpoint::number`].
    number: u64,
    /// Value of [`StateLedger::stored`] at the last use of the checkpoint.
    last_use: u64,
}

/// Reference counts of a slot; the module documentation defines them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateUses {
    pub(crate) owners: u32,
    pub(crate) leases: u32,
    pub(crate) pins: u32,
}

/// Reference counts, roles and anchors of all slots.
#[derive(Clone, Debug)]
pub(crate) struct StateLedger {
    slots: Vec<StateSlot>,
    free: IdSet,
    by_anchor: HashMap<Anchor, Slot, BuildHasherDefault<DefaultHasher>>,
    /// Anchors of published blocks whose checkpoint was evicted recently.
    evicted: RecentSet,
    /// The previous checkpoint of each one.
    tree: CheckpointTree,
    /// The evictable checkpoints by retention value.
    evictable: KineticTournament,
    checkpoints: u32,
    max_checkpoints: u32,
    /// Number of checkpoints stored so far. Numbers the checkpoints and measures their ages.
    stored: u64,
    /// The costs from which the values in `evictable` were computed.
    costs: RecomputeCosts,
    /// The newest costs, which may not be applied yet.
    new_costs: RecomputeCosts,
    /// Value of `stored` when `costs` were applied.
    applied_costs_at: u64,
    /// KV events, if they are recorded.
    log: Option<Box<CheckpointLog>>,
}

impl StateLedger {
    pub(crate) fn new(slots: u32, max_checkpoints: u32) -> Self {
        let mut free = IdSet::new(slots);
        (0..slots).for_each(|slot| _ = free.insert(slot));
        Self {
            slots: vec![StateSlot::default(); slots as usize],
            free,
            // A map that is at most half full never grows.
            by_anchor: HashMap::with_capacity_and_hasher(
                2 * max_checkpoints as usize,
                BuildHasherDefault::default(),
            ),
            evicted: RecentSet::new(2 * max_checkpoints as usize),
            tree: CheckpointTree::new(slots),
            evictable: KineticTournament::new(slots),
            checkpoints: 0,
            max_checkpoints,
            stored: 0,
            costs: RecomputeCosts::default(),
            new_costs: RecomputeCosts::default(),
            applied_costs_at: 0,
            log: None,
        }
    }

    /// Whether the slot still holds this checkpoint, i.e. it was not evicted.
    pub(crate) fn is_current(&self, checkpoint: &Checkpoint) -> bool {
        let slot = &self.slots[checkpoint.slot as usize];
        slot.role == Role::Checkpoint && slot.number == checkpoint.number
    }

    /// Whether a checkpoint is current and no step in flight writes it. `pending_writes` are the
    /// slots that steps in flight write.
    pub(crate) fn is_written(&self, checkpoint: &Checkpoint, pending_writes: &[Slot]) -> bool {
        self.is_current(checkpoint) && !pending_writes.contains(&checkpoint.slot)
    }

    /// The checkpoint that a slot holds.
    pub(crate) fn checkpoint_in(&self, slot: Slot) -> Checkpoint {
        let StateSlot { position, number, .. } = self.slots[slot as usize];
        Checkpoint { position, slot, number }
    }

    /// Number of slots that `take_live` can provide: free ones and evictable checkpoints.
    pub(crate) fn available(&self) -> u32 {
        self.free.len() + self.evictable.len()
    }

    /// Takes a slot for a live state with one owner. Evicts a checkpoint if no slot is free.
    pub(crate) fn take_live(&mut self) -> Option<Slot> {
        if self.free.len() == 0 {
            let victim = self.find_victim()?;
            self.evict(victim);
        }
        let slot = self.free.first()?;
        self.free.remove(slot);
        let uses = StateUses { owners: 1, ..StateUses::default() };
        self.slots[slot as usize] = StateSlot { role: Role::Live, uses, ..StateSlot::default() };
        Some(slot)
    }

    /// Takes a slot for a new checkpoint with one owner; a step will write it. `previous` is the
    /// sequence's checkpoint before `position`. `None` if the pool is full and every evictable
    /// checkpoint has a higher retention value.
    pub(crate) fn store(&mut self, position: Position, previous: Option<&Checkpoint>) -> Option<Checkpoint> {
        let candidates = self.make_room(position, previous)?;
        let slot = self.free.first()?;
        self.free.remove(slot);
        self.slots[slot as usize].uses.owners = 1;
        Some(self.set_checkpoint(slot, position, candidates))
    }

    /// Makes a live state a checkpoint. `None` under the condition of [`StateLedger::store`].
    pub(crate) fn seal(
        &mut self,
        slot: Slot,
        position: Position,
        previous: Option<&Checkpoint>,
    ) -> Option<Checkpoint> {
        debug_assert_eq!(self.slots[slot as usize].role, Role::Live);
        let candidates = self.make_room(position, previous)?;
        Some(self.set_checkpoint(slot, position, candidates))
    }

    /// Turns a slot into a checkpoint. `candidates` are those that `make_room` returned.
    fn set_checkpoint(
        &mut self,
        slot: Slot,
        position: Position,
        candidates: [Option<Slot>; 2],
    ) -> Checkpoint {
        self.checkpoints += 1;
        self.stored += 1;
        let (number, uses) = (self.stored, self.slots[slot as usize].uses);
        let is_checkpoint = |slot: &Slot| self.slots[*slot as usize].role == Role::Checkpoint;
        let previous = candidates.into_iter().flatten().find(is_checkpoint);
        let role = Role::Checkpoint;
        self.slots[slot as usize] =
            StateSlot { role, uses, anchor: None, position, number, last_use: number };
        self.tree.set_parent(slot, previous);
        self.update_value(slot);
        Checkpoint { position, slot, number }
    }

    /// Makes a slot the live state of its sequence again, after the step that would have
    /// overwritten it was canceled. Only that step's lease may refer to the slot.
    pub(crate) fn restore_live(&mut self, slot: Slot) {
        let state = self.slots[slot as usize];
        debug_assert!(state.uses.owners == 0 && state.uses.leases > 0 && state.anchor.is_none());
        if state.role == Role::Checkpoint {
            self.remove_checkpoint(slot);
        }
        let uses = StateUses { owners: 1, ..state.uses };
        self.slots[slot as usize] = StateSlot { role: Role::Live, uses, ..StateSlot::default() };
    }

    /// Makes room for a new checkpoint: evicts one of lower retention value if the maximum is
    /// reached. Returns the candidates for its previous checkpoint: `previous`, which this may have
    /// evicted, and the one before that. `None` if there is no room.
    fn make_room(&mut self, position: Position, previous: Option<&Checkpoint>) -> Option<[Option<Slot>; 2]> {
        let previous = previous.filter(|previous| self.is_current(previous)).map(|previous| previous.slot);
        let candidates = [previous, previous.and_then(|previous| self.tree.parent(previous))];
        if self.checkpoints < self.max_checkpoints {
            return Some(candidates);
        }
        let victim = self.find_victim()?;
        let from = previous.map_or(0, |previous| self.slots[previous as usize].position);
        let recompute = self.costs.recompute(from, position);
        let new = Contender { recompute, last_use: self.stored, number: u64::MAX };
        if self.evictable.get(victim).is_some_and(|victim| new.compare(&victim, self.stored).is_lt()) {
            return None;
        }
        self.evict(victim);
        Some(candidates)
    }

    /// The evictable checkpoint of the lowest retention value; of equal ones the oldest.
    fn find_victim(&mut self) -> Option<Slot> {
        if self.costs != self.new_costs && self.stored - self.applied_costs_at >= self.slots.len() as u64 {
            (self.costs, self.applied_costs_at) = (self.new_costs, self.stored);
            let Self { slots, tree, evictable, costs, stored, .. } = self;
            evictable.reset(*stored, |slot| contender(slots, tree, *costs, slot));
        }
        self.evictable.lowest(self.stored)
    }

    /// Sets the costs by which checkpoints are evicted. A later search applies them.
    pub(crate) fn set_costs(&mut self, costs: RecomputeCosts) {
        self.new_costs = costs;
    }

    /// Updates the retention value of a slot after a change of the slot or of its previous
    /// checkpoint.
    fn update_value(&mut self, slot: Slot) {
        let contender = contender(&self.slots, &self.tree, self.costs, slot);
        self.evictable.set(slot, contender, self.stored);
    }

    /// Frees the slot of an evictable checkpoint. The references in its owners' lists become stale.
    fn evict(&mut self, slot: Slot) {
        debug_assert!(is_evictable(&self.slots[slot as usize]));
        self.slots[slot as usize].anchor.iter().for_each(|anchor| self.evicted.insert(anchor.0));
        self.remove_checkpoint(slot);
        self.slots[slot as usize] = StateSlot::default();
        self.free.insert(slot);
    }

    /// Removes a checkpoint from the anchor map, the tree and the tournament. The caller resets the
    /// slot. Linear in its children in the tree.
    fn remove_checkpoint(&mut self, slot: Slot) {
        if let Some(anchor) = self.slots[slot as usize].anchor {
            self.remove_link(anchor);
        }
        while let Some(child) = self.tree.pass_on_child(slot) {
            self.update_value(child);
        }
        self.tree.set_parent(slot, None);
        self.evictable.set(slot, None, self.stored);
        self.checkpoints -= 1;
    }

    /// Frees a slot that has no references and no anchor.
    fn free_if_unused(&mut self, slot: Slot) {
        let state = self.slots[slot as usize];
        if state.uses == StateUses::default() && state.anchor.is_none() {
            if state.role == Role::Checkpoint {
                self.remove_checkpoint(slot);
            }
            self.slots[slot as usize] = StateSlot::default();
            self.free.insert(slot);
        }
    }

    /// Makes `slot` the previous checkpoint of `next`.
    pub(crate) fn set_previous(&mut self, next: &Checkpoint, slot: Slot) {
        if self.is_current(next) {
            self.tree.set_parent(next.slot, Some(slot));
            self.update_value(next.slot);
        }
    }

    pub(crate) fn add_owner(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.owners += 1;
    }

    pub(crate) fn remove_owner(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.owners -= 1;
        self.free_if_unused(slot);
    }

    pub(crate) fn lease(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.leases += 1;
        self.update_value(slot);
    }

    pub(crate) fn end_lease(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.leases -= 1;
        self.update_value(slot);
        self.free_if_unused(slot);
    }

    /// Protects a checkpoint from eviction: the next step of a sequence reads it.
    pub(crate) fn pin(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.pins += 1;
        self.update_value(slot);
    }

    pub(crate) fn unpin(&mut self, slot: Slot) {
        self.slots[slot as usize].uses.pins -= 1;
        self.update_value(slot);
        self.free_if_unused(slot);
    }

    /// Records a use of a checkpoint, which resets its age.
    pub(crate) fn touch(&mut self, slot: Slot) {
        self.slots[slot as usize].last_use = self.stored;
        self.update_value(slot);
    }

    /// The checkpoint at the end of a published block.
    pub(crate) fn find(&self, anchor: Anchor) -> Option<Checkpoint> {
        self.by_anchor.get(&anchor).map(|&slot| self.checkpoint_in(slot))
    }

    /// Whether the checkpoint at the end of a published block was evicted recently: at least the
    /// last `2 × max_checkpoints` such evictions are known.
    pub(crate) fn was_evicted(&self, anchor: Anchor) -> bool {
        self.evicted.contains(anchor.0)
    }

    /// Makes a checkpoint findable through an anchor. Does nothing if either is linked already.
    /// `hash` returns the hash of the anchor's block.
    pub(crate) fn link(&mut self, slot: Slot, anchor: Anchor, hash: impl FnOnce() -> Option<u64>) {
        let state = &mut self.slots[slot as usize];
        if state.anchor.is_none() && !self.by_anchor.contains_key(&anchor) {
            state.anchor = Some(anchor);
            self.by_anchor.insert(anchor, slot);
            self.evicted.remove(anchor.0);
            if let Some(log) = &mut self.log
                && let Some(hash) = hash()
            {
                log.on_link(anchor, hash);
            }
        }
    }

    /// Removes an anchor from the map. Returns the slot of its checkpoint.
    fn remove_link(&mut self, anchor: Anchor) -> Option<Slot> {
        let slot = self.by_anchor.remove(&anchor)?;
        self.log.iter_mut().for_each(|log| log.on_unlink(anchor));
        Some(slot)
    }

    /// Starts recording KV events. No checkpoint may be linked.
    pub(crate) fn record_events(&mut self) {
        debug_assert!(self.by_anchor.is_empty());
        self.log.get_or_insert_default();
    }

    /// Appends the recorded KV events to `into`; see [`CheckpointLog::take`].
    pub(crate) fn take_events(&mut self, is_cleared: bool, into: &mut Vec<KvEvent>) {
        if let Some(log) = &mut self.log {
            log.take(is_cleared, into);
        }
    }

    /// Removes the link of an anchor whose block left the prefix cache. Frees the checkpoint if it
    /// has no owners.
    pub(crate) fn unlink(&mut self, anchor: Anchor) {
        self.evicted.remove(anchor.0);
        if let Some(slot) = self.remove_link(anchor) {
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
        for (number, (slot, expected)) in (0..).zip(self.slots.iter().zip(expected)) {
            if slot.uses != *expected {
                let uses = slot.uses;
                return Err(format!("state slot {number} has counts {uses:?}, expected {expected:?}"));
            }
            let is_used = slot.uses != StateUses::default() || slot.anchor.is_some();
            let is_free = self.free.contains(number);
            if is_used == is_free || is_used != (slot.role != Role::Free) {
                return Err(format!("state slot {number} is {slot:?}, in the free list: {is_free}"));
            }
            if slot.anchor.is_some_and(|anchor| self.by_anchor.get(&anchor) != Some(&number)) {
                return Err(format!("state slot {number} is not linked to its anchor"));
            }
            let previous = self.tree.parent(number).map(|previous| &self.slots[previous as usize]);
            let is_wrong =
                |previous: &StateSlot| previous.role != Role::Checkpoint || previous.position > slot.position;
            if previous.is_some_and(is_wrong) {
                return Err(format!("the previous checkpoint of state slot {number} is {previous:?}"));
            }
            checkpoints += u32::from(slot.role == Role::Checkpoint);
        }
        self.tree.check()?;
        let expected = |slot| contender(&self.slots, &self.tree, self.costs, slot);
        self.evictable.check(self.stored, expected)?;
        let linked = self.slots.iter().filter(|slot| slot.anchor.is_some()).count();
        if linked != self.by_anchor.len() {
            return Err(format!("{} anchors are linked to {linked} checkpoints", self.by_anchor.len()));
        }
        if checkpoints != self.checkpoints || checkpoints > self.max_checkpoints {
            return Err(format!(
                "{checkpoints} checkpoints, counted as {}, maximum {}",
                self.checkpoints, self.max_checkpoints
            ));
        }
        Ok(())
    }
}

/// The contender of a slot: its checkpoint, if there is one and it may be evicted.
fn contender(
    slots: &[StateSlot],
    tree: &CheckpointTree,
    costs: RecomputeCosts,
    slot: Slot,
) -> Option<Contender> {
    let state = slots.get(slot as usize).filter(|state| is_evictable(state))?;
    let from = tree.parent(slot).map_or(0, |previous| slots[previous as usize].position);
    let recompute = costs.recompute(from, state.position);
    Some(Contender { recompute, last_use: state.last_use, number: state.number })
}

fn is_evictable(slot: &StateSlot) -> bool {
    slot.role == Role::Checkpoint && slot.uses.leases == 0 && slot.uses.pins == 0
}

#[cfg(test)]
mod tests;

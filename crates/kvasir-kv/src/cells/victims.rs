//! Victim selection in `cells`: a cell comes free with its last owner, unless a step in flight
//! names it.

use crate::cells::Cells;
use crate::contract::capabilities::{VictimSearch, Victims};
use crate::contract::group::{GroupId, Slots};
use crate::contract::ids::{SeqId, Slot};
use crate::shared::victims::{OwnerChanges, TrialRelease, choose, freed_by};

/// The cache after hypothetical releases.
struct CellTrial<'a> {
    cache: &'a Cells,
    changes: OwnerChanges,
    leased_too: bool,
    freed: u32,
}

impl Victims for Cells {
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        let mut changes = std::mem::take(&mut self.owner_changes);
        changes.reset(self.cells.high_water() as usize);
        let mut what_if = CellTrial { cache: self, changes, leased_too: search.leased_too, freed: 0 };
        let enough = choose(&mut what_if, search, victims);
        self.owner_changes = what_if.changes;
        enough
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots {
        let mut changes = std::mem::take(&mut self.owner_changes);
        changes.reset(self.cells.high_water() as usize);
        let mut what_if = CellTrial { cache: self, changes, leased_too: true, freed: 0 };
        let freed = freed_by(&mut what_if, sequences);
        self.owner_changes = what_if.changes;
        GroupId::FULL.slots(freed)
    }
}

impl CellTrial<'_> {
    /// Calls `each` with the cells that a sequence releases at once when truncated to position
    /// `from`.
    fn cells_behind(&mut self, seq: SeqId, from: u32, each: impl Fn(&mut Self, Slot)) {
        let cache = self.cache;
        let Ok(seq) = cache.seqs.get(seq) else { return };
        let in_flight = seq.last_step.is_some_and(|step| cache.inflight.is_pending(step));
        if !in_flight || self.leased_too {
            let slots = seq.entries.slots().range(seq.entries.index_of(from)..seq.entries.len());
            slots.chain(seq.node_slots.iter().copied()).for_each(|slot| each(self, slot));
        }
    }

    fn comes_free(&self, slot: Slot) -> bool {
        self.leased_too || self.cache.cells.leases(slot) == 0
    }
}

impl TrialRelease for CellTrial<'_> {
    fn release(&mut self, seq: SeqId, from: u32) {
        self.cells_behind(seq, from, |what_if, slot| {
            let owners = what_if.cache.cells.owners(slot);
            let is_last = what_if.changes.disown(slot, owners);
            what_if.freed += u32::from(is_last && what_if.comes_free(slot));
        });
    }

    fn undo_release(&mut self, seq: SeqId) {
        self.cells_behind(seq, 0, |what_if, slot| {
            let owners = what_if.cache.cells.owners(slot);
            let was_last = what_if.changes.undo_disown(slot, owners);
            what_if.freed -= u32::from(was_last && what_if.comes_free(slot));
        });
    }

    fn freed(&self) -> u32 {
        self.freed
    }
}

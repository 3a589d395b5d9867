//! Victim selection in a block cache: a block comes free with its last owner, unless a step in
//! flight names it.
//!
//! In a radix index a node's pages come free together, so the index counts hypothetical unpins
//! (`Unpinned`). Guarded by `tests/victims.rs`.

use crate::blocks::BlockCache;
use crate::blocks::index::{Index, Unpinned};
use crate::blocks::ledger::Ledger;
use crate::blocks::sequence::{HOLE, Seq};
use crate::contract::capabilities::{VictimSearch, Victims};
use crate::contract::group::{GroupId, Slots};
use crate::contract::ids::{BlockId, SeqId};
use crate::shared::victims::{OwnerChanges, TrialRelease, choose, freed_by};

/// The cache after hypothetical releases.
struct BlockTrial<'a, I> {
    cache: &'a BlockCache<I>,
    changes: OwnerChanges,
    unpinned: Unpinned,
    leased_too: bool,
    /// Blocks that have come free so far.
    freed: u32,
}

impl<I: Index> Victims for BlockCache<I> {
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        let mut changes = std::mem::take(&mut self.owner_changes);
        changes.reset(self.config.blocks as usize + usize::from(self.config.dummy));
        // A stale lookup protects nothing: its blocks are looked up again when it is attached.
        if self.looked_up.is_some_and(|(hit, _)| hit.lookup.0 == search.hit.lookup.0) {
            let found = self.found.iter().take((search.hit.tokens / self.config.block_size) as usize);
            found.for_each(|&block| changes.own(block));
        }
        let unpinned = Unpinned::default();
        let mut what_if =
            BlockTrial { cache: self, changes, unpinned, leased_too: search.leased_too, freed: 0 };
        let enough = choose(&mut what_if, search, victims);
        self.owner_changes = what_if.changes;
        enough
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots {
        let mut changes = std::mem::take(&mut self.owner_changes);
        changes.reset(self.config.blocks as usize + usize::from(self.config.dummy));
        let unpinned = Unpinned::default();
        let mut what_if = BlockTrial { cache: self, changes, unpinned, leased_too: true, freed: 0 };
        let freed = freed_by(&mut what_if, sequences);
        self.owner_changes = what_if.changes;
        GroupId::FULL.slots(freed)
    }
}

impl<I: Index> BlockTrial<'_, I> {
    /// Calls `each` with the blocks that a sequence releases at once when truncated to `from`.
    fn blocks_behind(&mut self, seq: SeqId, from: u32, each: impl Fn(&mut Self, BlockId)) {
        let cache = self.cache;
        let Ok(seq) = cache.seqs.get(seq) else { return };
        if self.leased_too || !self.is_in_flight(seq) {
            let blocks = seq.table.range(cache.size.holding(from)..seq.table.len());
            blocks.filter(|&block| block != HOLE).for_each(|block| each(self, block));
        }
        if from == 0 {
            seq.ahead.iter().for_each(|&block| each(self, block));
        }
    }

    fn is_in_flight(&self, seq: &Seq) -> bool {
        seq.last_step.is_some_and(|step| self.cache.inflight.is_pending(step))
    }

    fn ledger(&self) -> &Ledger<I> {
        &self.cache.ledger
    }

    /// Whether a block without owners can be allocated.
    fn comes_free(&self, block: BlockId) -> bool {
        self.leased_too || self.ledger().uses(block).leases == 0
    }
}

impl<I: Index> TrialRelease for BlockTrial<'_, I> {
    fn release(&mut self, seq: SeqId, from: u32) {
        self.blocks_behind(seq, from, |what_if, block| {
            let owners = what_if.ledger().uses(block).owners;
            if what_if.changes.disown(block, owners) && what_if.comes_free(block) {
                let index = &what_if.cache.ledger.index;
                what_if.freed += index.unused(block, &mut what_if.unpinned);
            }
        });
    }

    fn undo_release(&mut self, seq: SeqId) {
        self.blocks_behind(seq, 0, |what_if, block| {
            let owners = what_if.ledger().uses(block).owners;
            if what_if.changes.undo_disown(block, owners) && what_if.comes_free(block) {
                let index = &what_if.cache.ledger.index;
                what_if.freed -= index.used_again(block, &mut what_if.unpinned);
            }
        });
    }

    fn freed(&self) -> u32 {
        self.freed.saturating_mul(self.cache.config.block_size)
    }
}

//! `Ledger`: reference counts per block: owners (sequences) and leases (steps in flight, pending
//! slot copies).
//!
//! Invariant: a block returns to its index (`Index::release`) exactly when both counts are zero.
//! Blocks with leases but no owners count as `leased`. Bulk operations work on ranges of block ids
//! with equal counts, so releasing a long sequence costs a few range fills.

use crate::blocks::index::Index;
use crate::blocks::queue::BlockQueue;
use crate::contract::ids::BlockId;
use crate::contract::usage::BlockUse;
use crate::shared::runs::{indices, leading, runs};
use std::ops::Range;

/// Reference counts of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Sequences that own the block.
    pub(crate) owners: u32,
    /// References of steps in flight and pending slot copies.
    pub(crate) leases: u32,
}

/// Reference counts per block: owners (sequences) and leases (steps in flight, pending slot
/// copies). A block returns to its index only when both are zero.
#[derive(Clone, Debug)]
pub struct Ledger<I> {
    pub(crate) index: I,
    /// Struct of arrays: bulk allocation and release change one count of thousands of blocks.
    owners: Vec<u32>,
    leases: Vec<u32>,
    /// Number of blocks with leases but no owner.
    leased: u32,
}

impl<I: Index> Ledger<I> {
    pub(crate) fn new(index: I, bound: u32) -> Self {
        let none = vec![0; bound as usize];
        Self { index, owners: none.clone(), leases: none, leased: 0 }
    }

    pub(crate) fn uses(&self, block: BlockId) -> Uses {
        let of = |counts: &[u32]| counts.get(block as usize).copied().unwrap_or_default();
        Uses { owners: of(&self.owners), leases: of(&self.leases) }
    }

    /// Number of blocks with leases but no owner.
    pub(crate) fn leased(&self) -> u32 {
        self.leased
    }

    /// Appends the state of each of `blocks`.
    pub(crate) fn visit_blocks(&self, blocks: Range<BlockId>, to: &mut Vec<BlockUse>) {
        let mut rest = blocks;
        // Unused blocks mostly lie in long ranges.
        while let Some((uses, same)) = self.next_alike(&mut rest) {
            match uses {
                Uses { owners: 0, leases: 0 } => self.visit_unused(same, to),
                Uses { owners: 0, .. } => to.extend(same.map(|_| BlockUse::Leased)),
                _ => to.extend(same.map(|_| BlockUse::Held)),
            }
        }
    }

    fn visit_unused(&self, blocks: Range<BlockId>, to: &mut Vec<BlockUse>) {
        let mut rest = blocks;
        while !rest.is_empty() {
            let free = self.index.unpublished(rest.clone());
            to.extend((0..free).map(|_| BlockUse::Free));
            rest.start += free;
            if !rest.is_empty() {
                to.push(BlockUse::Cached);
                rest.start += 1;
            }
        }
    }

    /// Blocks that can be allocated now: free plus evictable.
    pub(crate) fn available(&self) -> u32 {
        self.index.free() + self.index.evictable()
    }

    /// Whether a block may be written: one owner, not published. Otherwise it must be copied first.
    pub(crate) fn is_writable(&self, block: BlockId) -> bool {
        self.uses(block).owners == 1 && !self.index.is_published(block)
    }

    /// Allocates a block with one owner.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = self.index.take()?;
        self.owners[block as usize] = 1;
        Some(block)
    }

    /// Allocates `count` blocks with one owner each into `queue`; the caller has checked that there
    /// are enough. Returns an exclusive upper bound of their ids.
    pub(crate) fn take_all(&mut self, count: u32, queue: &mut BlockQueue) -> BlockId {
        let (owners, mut bound) = (&mut self.owners, 0);
        self.index.take_all(count, |run| {
            bound = bound.max(run.end);
            owners[indices(&run)].fill(1);
            queue.push(run);
        });
        bound
    }

    /// Adds an owner.
    pub(crate) fn own(&mut self, block: BlockId) {
        let owners = &mut self.owners[block as usize];
        *owners += 1;
        if *owners == 1 {
            match self.leases[block as usize] {
                0 => self.index.hold(block),
                _ => self.leased -= 1,
            }
        }
    }

    /// Adds an owner to each of `blocks`, all unused.
    pub(crate) fn own_unused(&mut self, blocks: Range<BlockId>) {
        debug_assert!(blocks.clone().all(|block| self.uses(block) == Uses::default()));
        self.owners[indices(&blocks)].fill(1);
        self.index.hold_all(blocks);
    }

    /// Adds an owner to each of `blocks`.
    pub(crate) fn own_all(&mut self, blocks: Range<BlockId>) {
        self.change(blocks, |ledger, was, same| {
            match was {
                Uses { owners: 0, leases: 0 } => ledger.index.hold_all(same.clone()),
                Uses { owners: 0, .. } => ledger.leased -= same.len() as u32,
                _ => {}
            }
            Uses { owners: was.owners + 1, ..was }
        })
    }

    /// Removes an owner from each of `blocks`; unreferenced ones return to the index.
    pub(crate) fn disown_all(&mut self, blocks: &[BlockId]) {
        self.change_runs(blocks, |ledger, was, same| {
            match was {
                Uses { owners: 1, leases: 0 } => ledger.index.release_all(same.clone()),
                Uses { owners: 1, .. } => ledger.leased += same.len() as u32,
                _ => {}
            }
            Uses { owners: was.owners - 1, ..was }
        });
    }

    /// Deferred release: turns one owner of each of `blocks` into a lease.
    pub(crate) fn disown_all_later(&mut self, blocks: &[BlockId]) {
        self.change_runs(blocks, |ledger, was, same| {
            ledger.leased += if was.owners == 1 { same.len() as u32 } else { 0 };
            Uses { owners: was.owners - 1, leases: was.leases + 1 }
        });
    }

    /// Removes a lease from each of `blocks`; unreferenced ones return to the index.
    pub(crate) fn end_leases(&mut self, blocks: &[BlockId]) {
        self.change_runs(blocks, |ledger, was, same| {
            if was == (Uses { owners: 0, leases: 1 }) {
                ledger.leased -= same.len() as u32;
                ledger.index.release_all(same.clone());
            }
            Uses { leases: was.leases - 1, ..was }
        });
    }

    /// Changes the counts of `blocks` range by range: `change` gets a range with equal counts and
    /// returns the new ones.
    fn change(&mut self, blocks: Range<BlockId>, change: impl Fn(&mut Self, Uses, &Range<BlockId>) -> Uses) {
        let mut rest = blocks;
        while let Some((was, same)) = self.next_alike(&mut rest) {
            let uses = change(self, was, &same);
            if uses.owners != was.owners {
                self.owners[indices(&same)].fill(uses.owners);
            }
            if uses.leases != was.leases {
                self.leases[indices(&same)].fill(uses.leases);
            }
        }
    }

    /// Splits off the leading blocks with equal counts.
    fn next_alike(&self, rest: &mut Range<BlockId>) -> Option<(Uses, Range<BlockId>)> {
        let (owners, leases) = (&self.owners[indices(rest)], &self.leases[indices(rest)]);
        let uses = Uses { owners: *owners.first()?, leases: *leases.first()? };
        let same = leading(owners, |_, &owners| owners == uses.owners);
        let same = leading(&leases[..same], |_, &leases| leases == uses.leases) as u32;
        let alike = rest.start..rest.start + same;
        rest.start = alike.end;
        Some((uses, alike))
    }

    fn change_runs(&mut self, blocks: &[BlockId], change: impl Fn(&mut Self, Uses, &Range<BlockId>) -> Uses) {
        runs(blocks).for_each(|run| self.change(run, &change));
    }

    /// Removes an owner; an unreferenced block returns to the index.
    pub(crate) fn disown(&mut self, block: BlockId) {
        let owners = &mut self.owners[block as usize];
        *owners -= 1;
        if *owners == 0 {
            match self.leases[block as usize] {
                0 => self.index.release(block),
                _ => self.leased += 1,
            }
        }
    }

    /// Adds a lease to a used block.
    pub(crate) fn lease(&mut self, block: BlockId) {
        self.leases[block as usize] += 1;
    }

    /// Removes a lease; an unreferenced block returns to the index.
    pub(crate) fn end_lease(&mut self, block: BlockId) {
        self.leases[block as usize] -= 1;
        if self.uses(block) == Uses::default() {
            self.leased -= 1;
            self.index.release(block);
        }
    }

    /// Deferred release: turns one owner into a lease, because a step in flight still names the
    /// block.
    pub(crate) fn disown_later(&mut self, block: BlockId) {
        self.lease(block);
        self.disown(block);
    }

    /// Compares all counts with `expected`, then checks the index.
    pub(crate) fn check(&self, expected: &[Uses]) -> Result<(), String> {
        for (block, want) in (0..self.owners.len() as BlockId).zip(expected) {
            let have = self.uses(block);
            if have != *want {
                return Err(format!("block {block} counts {have:?}, its users are {want:?}"));
            }
        }
        let leased = self.owners.iter().zip(&self.leases).filter(|uses| matches!(uses, (0, 1..))).count();
        if leased != self.leased as usize {
            return Err(format!("{leased} blocks are only leased, counted {}", self.leased));
        }
        self.index.check(&|block| self.uses(block) != Uses::default())
    }
}

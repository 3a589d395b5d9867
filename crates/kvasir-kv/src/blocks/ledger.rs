use super::{Index, indices, leading, runs};
use crate::{BlockId, BlockUse};
use std::ops::Range;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) owners: u32,
    pub(crate) leases: u32,
}

/// Who uses each block: the sequences that own it, and the leases of steps in flight and of row moves to come.
/// A block goes back to its index only when both counts are zero.
#[derive(Clone, Debug)]
pub struct Ledger<I> {
    pub(crate) index: I,
    uses: Vec<Uses>,
    leased: u32,
}

impl<I: Index> Ledger<I> {
    pub(crate) fn new(index: I, bound: u32) -> Self {
        Self { index, uses: vec![Uses::default(); bound as usize], leased: 0 }
    }

    pub(crate) fn uses(&self, block: BlockId) -> Uses {
        self.uses.get(block as usize).copied().unwrap_or_default()
    }

    /// Blocks that are only leased.
    pub(crate) fn leased(&self) -> u32 {
        self.leased
    }

    /// Appends what each of `blocks` is used for now.
    pub(crate) fn survey(&self, blocks: Range<BlockId>, to: &mut Vec<BlockUse>) {
        let mut rest = blocks;
        while let Some(&first) = self.uses[indices(&rest)].first() {
            // Blocks that nobody uses mostly lie together.
            let same = leading(&self.uses[indices(&rest)], |_, &uses| uses == first) as u32;
            let same = rest.start..rest.start + same;
            rest.start = same.end;
            match first {
                Uses { owners: 0, leases: 0 } => self.survey_unused(same, to),
                Uses { owners: 0, .. } => to.extend(same.map(|_| BlockUse::Leased)),
                _ => to.extend(same.map(|_| BlockUse::Held)),
            }
        }
    }

    fn survey_unused(&self, blocks: Range<BlockId>, to: &mut Vec<BlockUse>) {
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

    /// Blocks that can be had now.
    pub(crate) fn available(&self) -> u32 {
        self.index.free() + self.index.idle()
    }

    /// Whether its one owner may write into a block.
    pub(crate) fn is_writable(&self, block: BlockId) -> bool {
        self.uses(block).owners == 1 && !self.index.is_published(block)
    }

    /// A fresh block with one owner.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = self.index.take()?;
        self.uses[block as usize].owners = 1;
        Some(block)
    }

    /// `count` fresh blocks with one owner each, behind those of `table`; the caller has seen that there are so many. Returns what
    /// they all lie below.
    pub(crate) fn take_all(&mut self, count: u32, table: &mut Vec<BlockId>) -> BlockId {
        let (uses, mut bound) = (&mut self.uses, 0);
        self.index.take_all(count, |run| {
            bound = bound.max(run.end);
            uses[indices(&run)].fill(Uses { owners: 1, leases: 0 });
            table.extend(run);
        });
        bound
    }

    /// One more owner.
    pub(crate) fn own(&mut self, block: BlockId) {
        let uses = &mut self.uses[block as usize];
        uses.owners += 1;
        if uses.owners == 1 {
            match uses.leases {
                0 => self.index.hold(block),
                _ => self.leased -= 1,
            }
        }
    }

    /// An owner for each of `blocks`, which nobody uses. Returns what they all lie below.
    pub(crate) fn own_all_idle(&mut self, blocks: &[BlockId]) -> BlockId {
        let mut bound = 0;
        for run in runs(blocks) {
            bound = bound.max(run.end);
            debug_assert!(self.uses[indices(&run)].iter().all(|uses| *uses == Uses::default()));
            self.uses[indices(&run)].fill(Uses { owners: 1, leases: 0 });
            self.index.hold_all(run);
        }
        bound
    }

    /// One more owner for each of `blocks`. Returns what they all lie below.
    pub(crate) fn own_all(&mut self, blocks: &[BlockId]) -> BlockId {
        self.change_all(blocks, |ledger, was, same| {
            match was {
                Uses { owners: 0, leases: 0 } => ledger.index.hold_all(same.clone()),
                Uses { owners: 0, .. } => ledger.leased -= same.len() as u32,
                _ => {}
            }
            Uses { owners: was.owners + 1, ..was }
        })
    }

    /// One owner less for each of `blocks`.
    pub(crate) fn disown_all(&mut self, blocks: &[BlockId]) {
        self.change_all(blocks, |ledger, was, same| {
            match was {
                Uses { owners: 1, leases: 0 } => ledger.index.let_go_all(same.clone()),
                Uses { owners: 1, .. } => ledger.leased += same.len() as u32,
                _ => {}
            }
            Uses { owners: was.owners - 1, ..was }
        });
    }

    /// An owner's share in each of `blocks` becomes a lease.
    pub(crate) fn disown_all_later(&mut self, blocks: &[BlockId]) {
        self.change_all(blocks, |ledger, was, same| {
            ledger.leased += if was.owners == 1 { same.len() as u32 } else { 0 };
            Uses { owners: was.owners - 1, leases: was.leases + 1 }
        });
    }

    /// One lease less on each of `blocks`.
    pub(crate) fn end_leases(&mut self, blocks: &[BlockId]) {
        self.change_all(blocks, |ledger, was, same| {
            if was == (Uses { owners: 0, leases: 1 }) {
                ledger.leased -= same.len() as u32;
                ledger.index.let_go_all(same.clone());
            }
            Uses { leases: was.leases - 1, ..was }
        });
    }

    /// Changes who uses `blocks`: `change` is told a stretch of them that is used alike, and says how it is used from now on.
    /// Returns what they all lie below.
    fn change_all(
        &mut self,
        blocks: &[BlockId],
        change: impl Fn(&mut Self, Uses, &Range<BlockId>) -> Uses,
    ) -> BlockId {
        let mut bound = 0;
        for mut rest in runs(blocks) {
            bound = bound.max(rest.end);
            while let Some(&was) = self.uses[indices(&rest)].first() {
                let alike = |uses: &Uses| (uses.owners ^ was.owners) | (uses.leases ^ was.leases) == 0;
                let same = leading(&self.uses[indices(&rest)], |_, uses| alike(uses)) as u32;
                let same = rest.start..rest.start + same;
                rest.start = same.end;
                let uses = change(self, was, &same);
                self.uses[indices(&same)].fill(uses);
            }
        }
        bound
    }

    /// One owner less.
    pub(crate) fn disown(&mut self, block: BlockId) {
        let uses = &mut self.uses[block as usize];
        uses.owners -= 1;
        if uses.owners == 0 {
            match uses.leases {
                0 => self.index.let_go(block),
                _ => self.leased += 1,
            }
        }
    }

    /// One more lease on a block that is used.
    pub(crate) fn lease(&mut self, block: BlockId) {
        self.uses[block as usize].leases += 1;
    }

    /// One lease less.
    pub(crate) fn end_lease(&mut self, block: BlockId) {
        let uses = &mut self.uses[block as usize];
        uses.leases -= 1;
        if *uses == Uses::default() {
            self.leased -= 1;
            self.index.let_go(block);
        }
    }

    /// An owner's share becomes a lease: given up, but a step in flight still names it.
    pub(crate) fn disown_later(&mut self, block: BlockId) {
        self.lease(block);
        self.disown(block);
    }

    pub(crate) fn check(&self, expected: &[Uses]) -> Result<(), String> {
        for (block, (have, want)) in self.uses.iter().zip(expected).enumerate() {
            if have != want {
                return Err(format!("block {block} counts {have:?}, its users are {want:?}"));
            }
        }
        let leased = self.uses.iter().filter(|uses| uses.owners == 0 && uses.leases > 0).count();
        if leased != self.leased as usize {
            return Err(format!("{leased} blocks are only leased, counted {}", self.leased));
        }
        self.index.check(&|block| self.uses(block) != Uses::default())
    }
}

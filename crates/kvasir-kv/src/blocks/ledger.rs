use super::Index;
use crate::{BlockId, BlockUse};

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

    /// What a block is used for now.
    pub(crate) fn survey(&self, block: BlockId) -> BlockUse {
        match self.uses(block) {
            Uses { owners: 0, leases: 0 } if self.index.is_published(block) => BlockUse::Cached,
            Uses { owners: 0, leases: 0 } => BlockUse::Free,
            Uses { owners: 0, .. } => BlockUse::Leased,
            _ => BlockUse::Held,
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

    /// `count` fresh blocks with one owner each, behind those of `table`; the caller has seen that there are so many.
    pub(crate) fn take_all(&mut self, count: u32, table: &mut Vec<BlockId>) {
        let first = table.len();
        self.index.take_all(count, table);
        table[first..].iter().for_each(|&block| self.uses[block as usize].owners = 1);
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

    /// One more owner for each of `blocks`.
    pub(crate) fn own_all(&mut self, blocks: &[BlockId]) {
        let Self { index, uses, leased } = self;
        index.hold_all(blocks.iter().copied().filter(|&block| uses[block as usize] == Uses::default()));
        for &block in blocks {
            let uses = &mut uses[block as usize];
            *leased -= u32::from(uses.owners == 0 && uses.leases > 0);
            uses.owners += 1;
        }
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

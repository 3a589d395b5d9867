//! `Lru`: the eviction order of `paged`, an intrusive doubly linked list of block ids in order of
//! release. Every operation takes O(1).

use crate::contract::ids::BlockId;
use crate::shared::eviction_order::EvictionOrder;

const NONE: BlockId = BlockId::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: BlockId,
    after: BlockId,
}

/// Blocks in order of release, as an intrusive doubly linked list; any can be removed in O(1).
#[derive(Clone, Debug)]
pub(crate) struct Lru {
    links: Vec<Link>,
    oldest: BlockId,
    newest: BlockId,
    len: u32,
}

impl Lru {
    pub(crate) fn new(bound: u32) -> Self {
        let unlinked = Link { before: NONE, after: NONE };
        Self { links: vec![unlinked; bound as usize], oldest: NONE, newest: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    fn oldest(&self) -> Option<BlockId> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        std::iter::successors(self.oldest(), |&block| {
            Some(self.links[block as usize].after).filter(|&after| after != NONE)
        })
    }
}

impl EvictionOrder for Lru {
    type Id = BlockId;
    type Rank = ();

    fn on_release(&mut self, block: BlockId, (): ()) {
        self.links[block as usize] = Link { before: self.newest, after: NONE };
        match self.newest {
            NONE => self.oldest = block,
            newest => self.links[newest as usize].after = block,
        }
        self.newest = block;
        self.len += 1;
    }

    fn on_use(&mut self, block: BlockId) {
        let Link { before, after } = self.links[block as usize];
        match before {
            NONE => self.oldest = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.links[after as usize].before = before,
        }
        self.len -= 1;
    }

    fn next(&mut self) -> Option<BlockId> {
        self.oldest().inspect(|&block| self.on_use(block))
    }
}

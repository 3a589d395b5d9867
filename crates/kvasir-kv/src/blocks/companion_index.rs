//! `CompanionIndex`: the index of a sliding-window group's blocks. A block is a *companion* of a
//! block of the full group: it holds the K and V of the same positions and is found through the
//! same anchor.
//!
//! It does not compare tokens: the full group has, when it returns the anchors of a prefix hit.
//!
//! - *Free*: unused and not linked; the lowest id is allocated first.
//! - *Evictable*: unused and linked. Blocks are evicted in order of release, protected ones
//!   (`protect`) after all others.
//!
//! Guarded by the unit test and by `tests/windows`.

use crate::blocks::BlockConfig;
use crate::blocks::index::{Found, Index, Offer};
use crate::blocks::miss_history::{Miss, MissReason};
use crate::blocks::paged::lru::Lru;
use crate::blocks::unpublished_anchors::UnpublishedAnchors;
use crate::contract::cache_end::CacheEnd;
use crate::contract::error::CacheError;
use crate::contract::group::Anchor;
use crate::contract::ids::{BlockId, Token};
use crate::contract::kind::CacheKind;
use crate::contract::kv_event::KvEvent;
use crate::shared::eviction_order::EvictionOrder;
use crate::shared::id_set::IdSet;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// Index entry of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Companion {
    anchor: Option<Anchor>,
    /// Whether it is evicted after blocks without this flag.
    is_protected: bool,
}

/// Blocks by the anchors of the full group's blocks, and the free blocks.
#[derive(Clone, Debug)]
pub(crate) struct CompanionIndex {
    free: IdSet,
    /// Evictable blocks, in order of release.
    lru: Lru,
    /// Evictable blocks that are protected, in order of release.
    protected: Lru,
    companions: Vec<Companion>,
    by_anchor: HashMap<Anchor, BlockId, BuildHasherDefault<DefaultHasher>>,
    /// Empty: the full group reports the anchors that become invalid.
    unpublished: UnpublishedAnchors,
}

impl CompanionIndex {
    /// An index over the blocks of a cache, all of them free.
    pub(crate) fn new(config: &BlockConfig) -> Result<Self, CacheError> {
        let ids = config.ids()?;
        let mut free = IdSet::new(ids.end);
        let bound = ids.end;
        ids.for_each(|block| _ = free.insert(block));
        Ok(Self {
            free,
            lru: Lru::new(bound),
            protected: Lru::new(bound),
            companions: vec![Companion::default(); bound as usize],
            by_anchor: HashMap::default(),
            unpublished: UnpublishedAnchors::default(),
        })
    }

    /// The block that is linked to an anchor.
    pub(crate) fn find_anchor(&self, anchor: Anchor) -> Option<BlockId> {
        self.by_anchor.get(&anchor).copied()
    }

    /// Links a block to an anchor. Does nothing if either is linked already.
    pub(crate) fn link(&mut self, block: BlockId, anchor: Anchor, is_used: bool) {
        if self.is_published(block) || self.by_anchor.contains_key(&anchor) {
            return;
        }
        self.by_anchor.insert(anchor, block);
        self.companions[block as usize] = Companion { anchor: Some(anchor), is_protected: false };
        if !is_used {
            self.free.remove(block);
            self.lru.on_release(block, ());
        }
    }

    /// Removes the link of a block.
    pub(crate) fn unlink(&mut self, block: BlockId, is_used: bool) {
        if !is_used {
            self.hold(block);
        }
        self.forget_block(block);
        if !is_used {
            self.free.insert(block);
        }
    }

    /// Protects a linked block: it is evicted after all unprotected ones.
    pub(crate) fn protect(&mut self, block: BlockId, is_used: bool) {
        let companion = &mut self.companions[block as usize];
        if companion.anchor.is_none() || std::mem::replace(&mut companion.is_protected, true) || is_used {
            return;
        }
        self.lru.on_use(block);
        self.protected.on_release(block, ());
    }

    fn forget_block(&mut self, block: BlockId) {
        if let Some(anchor) = std::mem::take(&mut self.companions[block as usize]).anchor {
            self.by_anchor.remove(&anchor);
        }
    }

    /// Unlinks the evictable block that is next in eviction order, and returns it.
    fn evict_next(&mut self) -> Option<BlockId> {
        let block = self.lru.next().or_else(|| self.protected.next())?;
        self.forget_block(block);
        Some(block)
    }

    /// The list of evictable blocks that a linked block belongs to while it is unused.
    fn list_of(&mut self, block: BlockId) -> &mut Lru {
        if self.companions[block as usize].is_protected { &mut self.protected } else { &mut self.lru }
    }
}

impl Index for CompanionIndex {
    const KIND: CacheKind = CacheKind::Paged;
    const FROM_END: bool = false;

    fn free(&self) -> u32 {
        self.free.len()
    }

    fn evictable(&self) -> u32 {
        self.lru.len() + self.protected.len()
    }

    fn take(&mut self) -> Option<BlockId> {
        if let Some(block) = self.free.first() {
            self.free.remove(block);
            return Some(block);
        }
        self.evict_next()
    }

    fn hold(&mut self, block: BlockId) {
        if self.is_published(block) {
            self.list_of(block).on_use(block);
        } else {
            self.free.remove(block);
        }
    }

    fn release(&mut self, block: BlockId) {
        if self.is_published(block) {
            self.list_of(block).on_release(block, ());
        } else {
            self.free.insert(block);
        }
    }

    fn anchor(&self, block: BlockId) -> Option<Anchor> {
        self.companions.get(block as usize).and_then(|companion| companion.anchor)
    }

    fn block_hash(&self, _block: BlockId) -> Option<u64> {
        None
    }

    fn unpublished_anchors(&mut self) -> &mut UnpublishedAnchors {
        &mut self.unpublished
    }

    fn is_published(&self, block: BlockId) -> bool {
        self.anchor(block).is_some()
    }

    /// Finds nothing: companions are found through anchors.
    fn find(&mut self, _tokens: &[Token], _salt: u64, _limit: u32, _found: &mut Vec<BlockId>) -> Found {
        Found::default()
    }

    /// The full group explains the misses of a prompt.
    fn explain(&mut self, _miss: Miss<'_>) -> MissReason {
        CacheEnd::NeverComputed.into()
    }

    /// Publishes nothing: companions are linked to anchors.
    fn publish(&mut self, _offer: Offer<'_>, _canonical: &mut Vec<BlockId>) -> u32 {
        0
    }

    fn evict(&mut self, blocks: u32) -> u32 {
        let mut evicted = 0;
        while evicted < blocks {
            let Some(block) = self.evict_next() else { break };
            self.free.insert(block);
            evicted += 1;
        }
        evicted
    }

    fn forget(&mut self) {
        self.evict(u32::MAX);
        self.companions.fill(Companion::default());
        self.by_anchor.clear();
    }

    fn record_events(&mut self) {}

    fn take_events(&mut self, _into: &mut Vec<KvEvent>) {}

    fn check(&self, used: &dyn Fn(BlockId) -> bool) -> Result<(), String> {
        for (block, companion) in (0..).zip(&self.companions) {
            let is_free = self.free.contains(block);
            if is_free && (used(block) || companion.anchor.is_some()) {
                return Err(format!("block {block} is free and {companion:?}"));
            }
            if companion.anchor.is_some_and(|anchor| self.by_anchor.get(&anchor) != Some(&block)) {
                return Err(format!("block {block} is not linked to its anchor"));
            }
        }
        let linked = self.companions.iter().filter(|companion| companion.anchor.is_some()).count();
        if linked != self.by_anchor.len() {
            return Err(format!("{} anchors are linked to {linked} blocks", self.by_anchor.len()));
        }
        for (list, is_protected) in [(&self.lru, false), (&self.protected, true)] {
            for block in list.iter() {
                let companion = self.companions[block as usize];
                if used(block) || companion.anchor.is_none() || companion.is_protected != is_protected {
                    return Err(format!("block {block} is evictable and {companion:?}"));
                }
            }
        }
        let unused = (0..)
            .zip(&self.companions)
            .filter(|(block, companion)| companion.anchor.is_some() && !used(*block));
        let (unused, evictable) = (unused.count(), self.evictable());
        if unused == evictable as usize {
            Ok(())
        } else {
            Err(format!("{unused} linked blocks are unused, {evictable} are evictable"))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::companion_index::*;

    #[test]
    fn protected_companions_are_evicted_last() {
        let config = BlockConfig { blocks: 3, ..BlockConfig::default() };
        let mut index = CompanionIndex::new(&config).unwrap();
        for number in 0..3 {
            assert_eq!(index.take(), Some(number));
            index.link(number, Anchor(u64::from(number)), true);
        }
        (0..3).for_each(|block| index.release(block));
        index.protect(0, false);
        assert_eq!((index.free(), index.evictable()), (0, 3));
        assert_eq!(index.take(), Some(1));
        assert_eq!((index.find_anchor(Anchor(1)), index.find_anchor(Anchor(0))), (None, Some(0)));
        assert_eq!((index.take(), index.take(), index.take()), (Some(2), Some(0), None));
        index.check(&|_| true).unwrap();
    }
}

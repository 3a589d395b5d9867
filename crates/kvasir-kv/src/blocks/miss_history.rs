//! `MissHistory`: why the next block after a prefix hit is not cached.
//!
//! It records two chained hashes of each published block, with the tenant's salt and without, and
//! the salted hashes of evicted blocks. A lookup that ends before the prompt's last whole block
//! hashes the next block and searches, in this order:
//!
//! 1. the evicted blocks: `Evicted`;
//! 2. the blocks published under other salts, by the hash without salt: `OtherKey`;
//! 3. otherwise `NeverComputed`.
//!
//! Hashes only explain a miss. They are not verified by tokens and never yield a hit.
//!
//! The hashes of evicted blocks are in two generations. A full generation replaces the one before
//! it, so at least the last `2 × capacity` and at most the last `4 × capacity` evictions are known.
//! Blocks are indexed by their unsalted hash only once a second salt has been seen.
//!
//! All memory is reserved at construction, because claims evict blocks and allocate nothing.
//! Guarded by `tests/miss_reasons.rs` and the unit tests.

use crate::blocks::hash::{BlockHashMap, hash_with, root_hash};
use crate::contract::ids::{BlockId, Token};
use crate::contract::short_hit::ShortHit;
use std::hash::BuildHasherDefault;

const NONE: BlockId = BlockId::MAX;

/// Evicted blocks per generation, as a multiple of the pool's capacity.
const GENERATION_FACTOR: usize = 2;

/// A block at its publication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBlock<'a> {
    pub(crate) block: BlockId,
    /// The published block before it.
    pub(crate) parent: Option<BlockId>,
    /// The tenant's salt.
    pub(crate) salt: u64,
    pub(crate) tokens: &'a [Token],
    /// Its chained hash, if the index has computed it.
    pub(crate) hash: Option<u64>,
}

/// The first block of a prompt that a lookup did not find.
#[derive(Clone, Copy, Debug)]
pub struct Miss<'a> {
    /// The last block of the hit.
    pub parent: Option<BlockId>,
    /// The tenant's salt.
    pub salt: u64,
    /// The tokens of the block that was not found.
    pub tokens: &'a [Token],
}

/// Why a lookup did not find the next block, and with `OtherKey` the salt that it is cached under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissReason {
    /// The reason.
    pub short: ShortHit,
    /// With `OtherKey`, the salt of the cached block; else 0.
    pub other_salt: u64,
}

impl From<ShortHit> for MissReason {
    fn from(short: ShortHit) -> Self {
        Self { short, other_salt: 0 }
    }
}

/// A published block, in the doubly linked list of blocks with its unsalted hash.
#[derive(Clone, Copy, Debug)]
struct PublishedBlock {
    /// Chained hash with salt.
    hash: u64,
    /// Chained hash without salt.
    unsalted: u64,
    salt: u64,
    previous: BlockId,
    next: BlockId,
    is_published: bool,
}

impl Default for PublishedBlock {
    fn default() -> Self {
        Self { hash: 0, unsalted: 0, salt: 0, previous: NONE, next: NONE, is_published: false }
    }
}

/// Hashes of published and of evicted blocks.
#[derive(Clone, Debug)]
pub(crate) struct MissHistory {
    blocks: Vec<PublishedBlock>,
    /// The first salt that was seen.
    first_salt: Option<u64>,
    /// The newest block of each unsalted hash; `None` until a second salt is seen.
    by_unsalted: Option<BlockHashMap<BlockId>>,
    evicted: EvictedBlocks,
    /// Scratch memory of `hash_with`.
    words: Vec<u64>,
}

impl MissHistory {
    /// An empty history of blocks with ids below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            blocks: vec![PublishedBlock::default(); bound],
            first_salt: None,
            by_unsalted: None,
            evicted: EvictedBlocks::new(bound * GENERATION_FACTOR),
            words: Vec::new(),
        }
    }

    /// Records the publication of a block.
    pub(crate) fn on_publish(&mut self, new: NewBlock<'_>) {
        let NewBlock { block, parent, salt, tokens, hash } = new;
        self.record_salt(salt);
        let parent = parent.map(|parent| self.blocks[parent as usize]);
        let words = &mut self.words;
        let hash = hash.unwrap_or_else(|| hash_with(parent_hash(parent, salt), tokens, words));
        let unsalted = match salt {
            0 => hash,
            _ => hash_with(parent.map(|parent| parent.unsalted), tokens, words),
        };
        let published = PublishedBlock { hash, unsalted, salt, is_published: true, ..Default::default() };
        self.blocks[block as usize] = published;
        self.index(block);
    }

    /// The chained hash of a published block.
    pub(crate) fn hash_of(&self, block: BlockId) -> u64 {
        self.blocks[block as usize].hash
    }

    /// Records the eviction of a published block.
    pub(crate) fn on_evict(&mut self, block: BlockId) {
        let evicted = std::mem::take(&mut self.blocks[block as usize]);
        self.evicted.insert(evicted.hash);
        let Some(heads) = &mut self.by_unsalted else { return };
        let PublishedBlock { unsalted, previous, next, .. } = evicted;
        match (previous, next) {
            (NONE, NONE) => _ = heads.remove(&unsalted),
            (NONE, next) => _ = heads.insert(unsalted, next),
            (previous, next) => self.blocks[previous as usize].next = next,
        }
        if next != NONE {
            self.blocks[next as usize].previous = previous;
        }
    }

    /// Records that the index dropped all published blocks.
    pub(crate) fn on_forget(&mut self) {
        for block in &mut self.blocks {
            if std::mem::take(block).is_published {
                self.evicted.insert(block.hash);
            }
        }
        if let Some(heads) = &mut self.by_unsalted {
            heads.clear();
        }
    }

    /// Why the next block after a hit was not found. `is_unreachable` tests whether the index holds
    /// a block with the given salted hash, which lookups do not reach because its parent was
    /// evicted.
    pub(crate) fn explain(&mut self, miss: Miss<'_>, is_unreachable: impl FnOnce(u64) -> bool) -> MissReason {
        let Miss { parent, salt, tokens } = miss;
        self.record_salt(salt);
        let parent = parent.map(|parent| self.blocks[parent as usize]);
        let hash = hash_with(parent_hash(parent, salt), tokens, &mut self.words);
        if self.evicted.contains(hash) || is_unreachable(hash) {
            return ShortHit::Evicted.into();
        }
        let Some(heads) = &self.by_unsalted else { return ShortHit::NeverComputed.into() };
        let unsalted = hash_with(parent.map(|parent| parent.unsalted), tokens, &mut self.words);
        let other = heads.get(&unsalted).map(|&head| self.blocks[head as usize].salt);
        match other.filter(|&other| other != salt) {
            Some(other_salt) => MissReason { short: ShortHit::OtherKey, other_salt },
            None => ShortHit::NeverComputed.into(),
        }
    }

    /// Builds the index by unsalted hash if this is the second salt that is seen. Linear in the
    /// blocks in that case.
    fn record_salt(&mut self, salt: u64) {
        if *self.first_salt.get_or_insert(salt) == salt || self.by_unsalted.is_some() {
            return;
        }
        self.by_unsalted =
            Some(BlockHashMap::with_capacity_and_hasher(self.blocks.len(), BuildHasherDefault::default()));
        for block in 0..self.blocks.len() as BlockId {
            if self.blocks[block as usize].is_published {
                self.index(block);
            }
        }
    }

    /// Adds a block to the index by unsalted hash, if that index exists.
    fn index(&mut self, block: BlockId) {
        let Some(heads) = &mut self.by_unsalted else { return };
        let next = heads.insert(self.blocks[block as usize].unsalted, block).unwrap_or(NONE);
        self.blocks[block as usize].next = next;
        if next != NONE {
            self.blocks[next as usize].previous = block;
        }
    }
}

/// The salted hash of a block's parent; the hash of the tenant's root for a prompt's first block.
fn parent_hash(parent: Option<PublishedBlock>, salt: u64) -> Option<u64> {
    parent.map_or_else(|| root_hash(salt), |parent| Some(parent.hash))
}

/// Hashes of the newest evicted blocks, in two generations.
#[derive(Clone, Debug)]
struct EvictedBlocks {
    newer: BlockHashMap<()>,
    older: BlockHashMap<()>,
    /// Maximum size of a generation.
    capacity: usize,
}

impl EvictedBlocks {
    fn new(capacity: usize) -> Self {
        let empty = || BlockHashMap::with_capacity_and_hasher(capacity, BuildHasherDefault::default());
        Self { newer: empty(), older: empty(), capacity }
    }

    fn insert(&mut self, hash: u64) {
        if self.newer.len() == self.capacity {
            std::mem::swap(&mut self.newer, &mut self.older);
            self.newer.clear();
        }
        self.newer.insert(hash, ());
    }

    fn contains(&self, hash: u64) -> bool {
        self.newer.contains_key(&hash) || self.older.contains_key(&hash)
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::miss_history::*;

    const TENANT_A: u64 = 8;
    const TENANT_B: u64 = 9;

    fn publish(history: &mut MissHistory, block: BlockId, salt: u64, tokens: &[Token]) {
        history.on_publish(NewBlock { block, parent: None, salt, tokens, hash: None });
    }

    fn explain(history: &mut MissHistory, salt: u64, tokens: &[Token]) -> MissReason {
        history.explain(Miss { parent: None, salt, tokens }, |_| false)
    }

    #[test]
    fn the_salt_of_a_cached_block_is_reported_until_its_eviction() {
        let mut history = MissHistory::new(4);
        publish(&mut history, 0, TENANT_A, &[1, 2]);
        publish(&mut history, 1, TENANT_A, &[1, 2]);
        let other = MissReason { short: ShortHit::OtherKey, other_salt: TENANT_A };
        assert_eq!(explain(&mut history, TENANT_B, &[1, 2]), other);
        assert_eq!(explain(&mut history, 0, &[1, 2]), other);
        history.on_evict(1);
        assert_eq!(explain(&mut history, TENANT_B, &[1, 2]), other, "block 0 has the same content");
        history.on_evict(0);
        assert_eq!(explain(&mut history, TENANT_B, &[1, 2]), ShortHit::NeverComputed.into());
        assert_eq!(explain(&mut history, TENANT_A, &[1, 2]), ShortHit::Evicted.into());
    }

    #[test]
    fn equal_blocks_with_other_parents_do_not_match() {
        let mut history = MissHistory::new(4);
        publish(&mut history, 0, 0, &[1, 2]);
        history.on_publish(NewBlock { block: 1, parent: Some(0), salt: 0, tokens: &[3, 4], hash: None });
        publish(&mut history, 2, TENANT_A, &[1, 2]);
        let next = |parent, salt, tokens| Miss { parent, salt, tokens };
        let same = history.explain(next(Some(2), TENANT_A, &[3, 4]), |_| false);
        assert_eq!(same, MissReason { short: ShortHit::OtherKey, other_salt: 0 });
        assert_eq!(explain(&mut history, TENANT_A, &[3, 4]), ShortHit::NeverComputed.into());
    }

    #[test]
    fn old_evictions_are_forgotten() {
        let mut evicted = EvictedBlocks::new(4);
        (0..100).for_each(|hash| evicted.insert(hash));
        let known: Vec<u64> = (0..100).filter(|&hash| evicted.contains(hash)).collect();
        assert_eq!(known, (92..100).collect::<Vec<_>>());
    }
}

//! `MissHistory`: why the block behind a prefix hit is not cached.
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
//! While all salts are equal, no block is searched by its unsalted hash, and none is indexed by it.
//!
//! All memory is reserved at construction, because claims evict blocks and allocate nothing.
//! Guarded by `tests/miss_reasons.rs` and the unit tests.

use crate::blocks::hash::{BlockHashMap, hash_with, root_hash};
use crate::contract::ids::{BlockId, Token};
use crate::contract::short_hit::ShortHit;
use std::hash::BuildHasherDefault;

const NONE: BlockId = BlockId::MAX;

/// Number of evicted blocks per generation, as a multiple of the capacity.
const GENERATION: usize = 2;

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

/// Why a prefix hit is short, and with `OtherKey` the salt under which the next block is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissReason {
    /// The reason.
    pub short: ShortHit,
    /// The other salt; else 0.
    pub other_salt: u64,
}

impl From<ShortHit> for MissReason {
    fn from(short: ShortHit) -> Self {
        Self { short, other_salt: 0 }
    }
}

/// A published block. Blocks with equal unsalted hashes are linked.
#[derive(Clone, Copy, Debug)]
struct PublishedBlock {
    /// Chained hashes with and without salt.
    hash: u64,
    unsalted: u64,
    salt: u64,
    before: BlockId,
    after: BlockId,
    is_published: bool,
}

impl Default for PublishedBlock {
    fn default() -> Self {
        Self { hash: 0, unsalted: 0, salt: 0, before: NONE, after: NONE, is_published: false }
    }
}

/// Hashes of published and of evicted blocks.
#[derive(Clone, Debug)]
pub(crate) struct MissHistory {
    blocks: Vec<PublishedBlock>,
    /// The first salt, and whether another one was seen.
    first_salt: Option<u64>,
    /// The newest block of each unsalted hash, once there are several salts.
    by_unsalted: Option<BlockHashMap<BlockId>>,
    evicted: EvictedBlocks,
    /// Scratch memory of `hash_with`.
    words: Vec<u64>,
}

impl MissHistory {
    /// A history of blocks with ids below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            blocks: vec![PublishedBlock::default(); bound],
            first_salt: None,
            by_unsalted: None,
            evicted: EvictedBlocks::new(bound * GENERATION),
            words: Vec::new(),
        }
    }

    /// The block was published.
    pub(crate) fn on_publish(&mut self, new: NewBlock<'_>) {
        let NewBlock { block, parent, salt, tokens, hash } = new;
        self.note_salt(salt);
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

    /// The published block was evicted: lookups no longer find it.
    pub(crate) fn on_evict(&mut self, block: BlockId) {
        let evicted = std::mem::take(&mut self.blocks[block as usize]);
        self.evicted.insert(evicted.hash);
        let Some(heads) = &mut self.by_unsalted else { return };
        let PublishedBlock { unsalted, before, after, .. } = evicted;
        match (before, after) {
            (NONE, NONE) => _ = heads.remove(&unsalted),
            (NONE, after) => _ = heads.insert(unsalted, after),
            (before, after) => self.blocks[before as usize].after = after,
        }
        if after != NONE {
            self.blocks[after as usize].before = before;
        }
    }

    /// All published blocks were dropped from the index.
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

    /// Why the block behind a hit was not found. `is_unreachable` says whether the index holds a
    /// block with a salted hash: then lookups do not reach it because its parent was evicted.
    pub(crate) fn explain(&mut self, miss: Miss<'_>, is_unreachable: impl FnOnce(u64) -> bool) -> MissReason {
        let Miss { parent, salt, tokens } = miss;
        self.note_salt(salt);
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

    /// Begins to index blocks by their unsalted hashes if this is the second salt. Linear in the
    /// blocks then.
    fn note_salt(&mut self, salt: u64) {
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

    /// Indexes a block by its unsalted hash, if blocks are.
    fn index(&mut self, block: BlockId) {
        let Some(heads) = &mut self.by_unsalted else { return };
        let after = heads.insert(self.blocks[block as usize].unsalted, block).unwrap_or(NONE);
        self.blocks[block as usize].after = after;
        if after != NONE {
            self.blocks[after as usize].before = block;
        }
    }
}

/// The salted hash of a block's parent; that of the tenant's root for a prompt's first block.
fn parent_hash(parent: Option<PublishedBlock>, salt: u64) -> Option<u64> {
    parent.map_or_else(|| root_hash(salt), |parent| Some(parent.hash))
}

/// Hashes of the newest evicted blocks, in two generations.
#[derive(Clone, Debug)]
struct EvictedBlocks {
    newer: BlockHashMap<()>,
    older: BlockHashMap<()>,
    /// Maximum size of a generation.
    most: usize,
}

impl EvictedBlocks {
    fn new(most: usize) -> Self {
        let empty = || BlockHashMap::with_capacity_and_hasher(most, BuildHasherDefault::default());
        Self { newer: empty(), older: empty(), most }
    }

    fn insert(&mut self, hash: u64) {
        if self.newer.len() == self.most {
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
    fn a_block_of_another_salt_is_named_until_its_eviction() {
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
    fn the_parent_is_part_of_the_content() {
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

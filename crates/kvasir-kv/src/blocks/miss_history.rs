//! `MissHistory`: why the next block after a prefix hit is not cached.
//!
//! It records the *content hash* of each published block: a hash of its tokens and all before them,
//! without the tenant's salt. Content hash and salt give the *salted hash*. A lookup that ends
//! before the prompt's last whole block hashes the next block and searches, in this order:
//!
//! 1. the salted hashes of evicted blocks: `Evicted`;
//! 2. the blocks published under other salts, by content hash: `OtherKey`;
//! 3. otherwise `NeverComputed`.
//!
//! Content hashes only explain a miss. They are not verified by tokens and never yield a hit. Their
//! function is chosen for speed, because every publication of a block computes one: it differs from
//! the block hash that routers compute, and tokens forged to collide get a wrong reason.
//!
//! The salted hashes of evicted blocks are a `RecentSet`: at least the last `2 × capacity` and at
//! most the last `4 × capacity` evictions are known. Blocks are indexed by content hash only once a
//! second salt has been seen.
//!
//! Claims evict blocks and allocate nothing: the index is allocated by the lookup or publication
//! that sees the second salt, all other memory at construction. Guarded by `tests/miss_reasons.rs`
//! and the unit tests.

use crate::blocks::hash::BlockHashMap;
use crate::contract::cache_end::CacheEnd;
use crate::contract::ids::{BlockId, Token};
use crate::shared::recent_set::RecentSet;
use std::hash::BuildHasherDefault;

const NONE: BlockId = BlockId::MAX;

/// Content hash of a block that is not published.
const UNPUBLISHED: u64 = 0;

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
    pub cache_end: CacheEnd,
    /// With `OtherKey`, the salt of the cached block; else 0.
    pub other_salt: u64,
}

impl From<CacheEnd> for MissReason {
    fn from(cache_end: CacheEnd) -> Self {
        Self { cache_end, other_salt: 0 }
    }
}

/// A published block, in the doubly linked list of blocks with its content hash.
#[derive(Clone, Copy, Debug)]
struct SaltedBlock {
    salt: u64,
    previous: BlockId,
    next: BlockId,
}

/// Blocks of several salts by content hash.
#[derive(Clone, Debug)]
struct ContentIndex {
    blocks: Vec<SaltedBlock>,
    /// The newest block of each content hash.
    heads: BlockHashMap<BlockId>,
}

/// Content hashes of published blocks and salted hashes of evicted ones.
#[derive(Clone, Debug)]
pub(crate) struct MissHistory {
    /// By block.
    content_hashes: Vec<u64>,
    /// The first salt that was seen.
    first_salt: Option<u64>,
    /// `None` until a second salt is seen.
    index: Option<ContentIndex>,
    evicted: RecentSet,
}

impl MissHistory {
    /// An empty history of blocks with ids below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            content_hashes: vec![UNPUBLISHED; bound],
            first_salt: None,
            index: None,
            evicted: RecentSet::new(bound * GENERATION_FACTOR),
        }
    }

    /// Records the publication of a block.
    pub(crate) fn on_publish(&mut self, new: NewBlock<'_>) {
        let NewBlock { block, parent, salt, tokens } = new;
        self.record_salt(salt);
        let content_hash = self.content_hash_after(parent, tokens);
        self.content_hashes[block as usize] = content_hash;
        if let Some(index) = &mut self.index {
            index.insert(block, content_hash, salt);
        }
    }

    /// Records the eviction of a published block.
    pub(crate) fn on_evict(&mut self, block: BlockId) {
        let content_hash = std::mem::take(&mut self.content_hashes[block as usize]);
        let mut salt = self.first_salt.unwrap_or_default();
        if let Some(index) = &mut self.index {
            salt = index.remove(block, content_hash);
        }
        self.evicted.insert(salted_hash(content_hash, salt));
    }

    /// Records that the index dropped all published blocks.
    pub(crate) fn on_forget(&mut self) {
        for block in 0..self.content_hashes.len() {
            if self.content_hashes[block] != UNPUBLISHED {
                self.on_evict(block as BlockId);
            }
        }
    }

    /// Why the next block after a hit was not found. `is_unreachable` tests whether the index holds
    /// that block, which lookups do not reach because its parent was evicted.
    pub(crate) fn explain(&mut self, miss: Miss<'_>, is_unreachable: impl FnOnce() -> bool) -> MissReason {
        let Miss { parent, salt, tokens } = miss;
        self.record_salt(salt);
        let content_hash = self.content_hash_after(parent, tokens);
        if self.evicted.contains(salted_hash(content_hash, salt)) || is_unreachable() {
            return CacheEnd::Evicted.into();
        }
        let other = self.index.as_ref().and_then(|index| index.newest_salt(content_hash));
        match other.filter(|&other| other != salt) {
            Some(other_salt) => MissReason { cache_end: CacheEnd::OtherKey, other_salt },
            None => CacheEnd::NeverComputed.into(),
        }
    }

    /// The content hash of a block with these tokens after a published block.
    fn content_hash_after(&self, parent: Option<BlockId>, tokens: &[Token]) -> u64 {
        content_hash(parent.map_or(UNPUBLISHED, |parent| self.content_hashes[parent as usize]), tokens)
    }

    /// Builds the index by content hash if this is the second salt that is seen. Linear in the
    /// blocks in that case.
    fn record_salt(&mut self, salt: u64) {
        let first = *self.first_salt.get_or_insert(salt);
        if first == salt || self.index.is_some() {
            return;
        }
        let count = self.content_hashes.len();
        let unlinked = SaltedBlock { salt: 0, previous: NONE, next: NONE };
        let heads = BlockHashMap::with_capacity_and_hasher(2 * count, BuildHasherDefault::default());
        let mut index = ContentIndex { blocks: vec![unlinked; count], heads };
        for (block, &content_hash) in (0..).zip(&self.content_hashes) {
            if content_hash != UNPUBLISHED {
                index.insert(block, content_hash, first);
            }
        }
        self.index = Some(index);
    }
}

impl ContentIndex {
    fn insert(&mut self, block: BlockId, content_hash: u64, salt: u64) {
        let next = self.heads.insert(content_hash, block).unwrap_or(NONE);
        self.blocks[block as usize] = SaltedBlock { salt, previous: NONE, next };
        if next != NONE {
            self.blocks[next as usize].previous = block;
        }
    }

    /// Removes a block; returns its salt.
    fn remove(&mut self, block: BlockId, content_hash: u64) -> u64 {
        let SaltedBlock { salt, previous, next } = self.blocks[block as usize];
        match (previous, next) {
            (NONE, NONE) => _ = self.heads.remove(&content_hash),
            (NONE, next) => _ = self.heads.insert(content_hash, next),
            (previous, next) => self.blocks[previous as usize].next = next,
        }
        if next != NONE {
            self.blocks[next as usize].previous = previous;
        }
        salt
    }

    /// The salt of the newest block with this content hash.
    fn newest_salt(&self, content_hash: u64) -> Option<u64> {
        self.heads.get(&content_hash).map(|&head| self.blocks[head as usize].salt)
    }
}

/// Odd constants with about as many ones as zeros (digits of the golden ratio and of square roots).
const KEYS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b];

/// The mixing step of wyhash: XOR of both halves of a 128-bit product. Commutative, so the operands
/// need different keys.
fn wymix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Content hash of a block with these tokens after a block with content hash `parent`; never
/// [`UNPUBLISHED`].
fn content_hash(parent: u64, tokens: &[Token]) -> u64 {
    let pair = |tokens: &[Token], at: usize| {
        let token = |at: usize| u64::from(tokens.get(at).copied().unwrap_or_default());
        token(at) | token(at + 1) << 32
    };
    // Two independent chains of products, for instruction-level parallelism.
    let mut chains = [parent ^ KEYS[0], KEYS[1]];
    for tokens in tokens.chunks(8) {
        for (chain, at) in chains.iter_mut().zip([0, 4]) {
            *chain = wymix(*chain ^ pair(tokens, at), pair(tokens, at + 2) ^ KEYS[2]);
        }
    }
    // The length distinguishes blocks that end in different numbers of zeros.
    wymix(chains[0] ^ KEYS[1], chains[1] ^ KEYS[3] ^ tokens.len() as u64).max(UNPUBLISHED + 1)
}

/// Hash of a content hash and a salt; the content hash itself if the salt is 0.
fn salted_hash(content_hash: u64, salt: u64) -> u64 {
    if salt == 0 { content_hash } else { wymix(content_hash ^ KEYS[0], salt ^ KEYS[1]) }
}

#[cfg(test)]
mod tests {
    use crate::blocks::miss_history::*;
    use std::collections::HashSet;

    const TENANT_A: u64 = 8;
    const TENANT_B: u64 = 9;

    fn publish(history: &mut MissHistory, block: BlockId, salt: u64, tokens: &[Token]) {
        history.on_publish(NewBlock { block, parent: None, salt, tokens });
    }

    fn explain(history: &mut MissHistory, salt: u64, tokens: &[Token]) -> MissReason {
        history.explain(Miss { parent: None, salt, tokens }, || false)
    }

    #[test]
    fn the_salt_of_a_cached_block_is_reported_until_its_eviction() {
        let mut history = MissHistory::new(4);
        publish(&mut history, 0, TENANT_A, &[1, 2]);
        publish(&mut history, 1, TENANT_A, &[1, 2]);
        let other = MissReason { cache_end: CacheEnd::OtherKey, other_salt: TENANT_A };
        assert_eq!(explain(&mut history, TENANT_B, &[1, 2]), other);
        assert_eq!(explain(&mut history, 0, &[1, 2]), other);
        history.on_evict(1);
        assert_eq!(explain(&mut history, TENANT_B, &[1, 2]), other, "block 0 has the same content");
        history.on_evict(0);
        assert_eq!(explain(&mut history, TENANT_B, &[1, 2]), CacheEnd::NeverComputed.into());
        assert_eq!(explain(&mut history, TENANT_A, &[1, 2]), CacheEnd::Evicted.into());
    }

    #[test]
    fn equal_blocks_with_other_parents_do_not_match() {
        let mut history = MissHistory::new(4);
        publish(&mut history, 0, 0, &[1, 2]);
        history.on_publish(NewBlock { block: 1, parent: Some(0), salt: 0, tokens: &[3, 4] });
        publish(&mut history, 2, TENANT_A, &[1, 2]);
        let next = |parent, salt, tokens| Miss { parent, salt, tokens };
        let same = history.explain(next(Some(2), TENANT_A, &[3, 4]), || false);
        assert_eq!(same, MissReason { cache_end: CacheEnd::OtherKey, other_salt: 0 });
        assert_eq!(explain(&mut history, TENANT_A, &[3, 4]), CacheEnd::NeverComputed.into());
    }

    #[test]
    fn content_hashes_of_similar_blocks_differ() {
        let mut seen = HashSet::new();
        for (len, bits) in (1..=12).flat_map(|len| (0..1 << len).map(move |bits| (len, bits))) {
            let tokens: Vec<Token> = (0..len).map(|at| bits >> at & 1).collect();
            for parent in [UNPUBLISHED, 7] {
                assert!(seen.insert(content_hash(parent, &tokens)), "{tokens:?} after {parent}");
            }
        }
        let (ends, swapped) = ([1 << 31, 0, 0, 9], [0, 9, 1 << 31, 0]);
        assert!(seen.insert(content_hash(7, &ends)) && seen.insert(content_hash(7, &swapped)));
    }
}

//! `--cache paged`: paged attention with hash-based prefix caching (as vLLM's automatic prefix
//! caching) and LRU eviction.
//!
//! A full block is found by the chained hash of its tokens and all tokens before it, then verified
//! by comparing them. Unreferenced published blocks stay findable until they are evicted for other
//! content, least recently released first.

pub(crate) mod announced;
pub(crate) mod index;
pub(crate) mod lru;

use crate::blocks::paged::index::HashIndex;

use crate::blocks::{BlockCache, BlockConfig};
use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, SeqId, Token};

/// Reference-counted blocks, found by a hash of their tokens and all tokens before them.
pub type Paged = BlockCache<HashIndex>;

impl Paged {
    /// An empty cache.
    pub fn new(config: BlockConfig) -> Result<Self, CacheError> {
        Self::over(HashIndex::new(&config)?, config)
    }

    /// Publishes a sequence's full blocks in `start .. end`, unless the block before them is
    /// unpublished. For K and V that arrive from outside in ranges. Returns the number of newly
    /// published blocks.
    pub fn publish_range(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        start: u32,
        end: u32,
    ) -> Result<u32, CacheError> {
        let block_size = self.config().block_size;
        let before = self.index().published();
        self.publish_blocks(seq, tokens, start / block_size, end / block_size)?;
        Ok(self.index().published() - before)
    }

    /// Number of leading tokens of a sequence in published blocks.
    pub fn published_tokens(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.published_blocks(seq)? * self.config().block_size)
    }

    /// Hash of a sequence's block `at`, if it is published.
    pub fn hash_of(&self, seq: SeqId, at: u32) -> Result<Option<u64>, CacheError> {
        let block = self.table(seq)?.get(at as usize).copied();
        Ok(block.and_then(|block| self.index().hash_of(block)))
    }
}

/// Lookup by hash alone, for routers.
impl Paged {
    /// A published block with this hash, not verified by tokens.
    pub fn find_hash(&self, hash: u64) -> Option<BlockId> {
        self.index().find_hash(hash)
    }
}

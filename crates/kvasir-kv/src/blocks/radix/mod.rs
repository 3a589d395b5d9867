//! `--cache radix`: prefix caching by a radix tree over token ids, in whole pages (as SGLang's
//! RadixAttention), with LRU eviction of leaves.

pub(crate) mod index;
pub(crate) mod lru_heap;
pub(crate) mod page_nodes;
pub(crate) mod tree;

use crate::blocks::radix::index::RadixIndex;

use crate::blocks::{BlockCache, BlockConfig};
use crate::contract::error::CacheError;

/// A block cache over a radix tree: a prompt finds its longest cached prefix in whole pages, and
/// duplicate content is kept once when it is published.
pub type Radix = BlockCache<RadixIndex>;

impl Radix {
    /// An empty cache.
    pub fn new(config: BlockConfig) -> Result<Self, CacheError> {
        Self::over(RadixIndex::new(&config)?, config)
    }
}

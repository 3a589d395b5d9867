//! `--cache radix`: prefix caching by a radix tree over token ids, in whole pages (as SGLang's
//! RadixAttention), with LRU eviction of leaves.

mod index;
mod oldest;
mod places;
mod tree;

pub use index::RadixIndex;
pub use tree::{NodeId, RadixTree, Reached};

use crate::CacheError;
use crate::blocks::{BlockCache, BlockConfig};

/// A block cache over a radix tree: a prompt finds its longest cached prefix in whole pages, and
/// duplicate content is kept once when it is published.
pub type Radix = BlockCache<RadixIndex>;

impl Radix {
    /// An empty cache.
    pub fn new(config: BlockConfig) -> Result<Self, CacheError> {
        Self::over(RadixIndex::new(&config)?, config)
    }
}

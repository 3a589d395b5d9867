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

/// Pages shared through a radix tree: a prompt finds the longest prefix that is there, in whole pages, and what turns out
/// to be there twice when it is published is kept once.
pub type Radix = BlockCache<RadixIndex>;

impl Radix {
    /// An empty cache.
    pub fn new(config: BlockConfig) -> Result<Self, CacheError> {
        Self::over(RadixIndex::new(&config)?, config)
    }
}

//! `CacheEvent`: KV cache events (blocks stored, removed, cleared), from which a prefix-aware
//! router follows what this cache holds.

use crate::Token;
use serde::{Deserialize, Serialize};

/// A change of what the cache can find, for routers that follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum CacheEvent {
    /// Blocks that can be found from now on, one behind the other.
    Stored {
        /// Their hashes.
        hashes: Vec<u64>,
        /// Hash of the block before the first; none at the begin of a prompt.
        parent: Option<u64>,
        /// Their tokens.
        tokens: Vec<Token>,
        /// Tokens per block.
        block_size: u32,
    },
    /// A block that was handed out for other content.
    Removed {
        /// Its hash.
        hash: u64,
    },
    /// Nothing can be found any more.
    Cleared,
}

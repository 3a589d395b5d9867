//! `CacheEvent`: KV cache events (blocks stored, removed, cleared), from which a prefix-aware
//! router follows what this cache holds.

use crate::contract::ids::Token;
use serde::{Deserialize, Serialize};

/// A change of the prefix cache, for prefix-aware routers that mirror it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum CacheEvent {
    /// Blocks published, each the successor of the one before.
    Stored {
        /// Their hashes.
        hashes: Vec<u64>,
        /// Hash of the block before the first; `None` at the beginning of a prompt.
        parent: Option<u64>,
        /// Their tokens.
        tokens: Vec<Token>,
        /// Tokens per block.
        block_size: u32,
    },
    /// A published block was evicted.
    Removed {
        /// Its hash.
        hash: u64,
    },
    /// The whole prefix cache was dropped.
    Cleared,
}

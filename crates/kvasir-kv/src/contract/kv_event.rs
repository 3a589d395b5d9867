//! `KvEvent`: KV cache events (blocks stored, removed, cleared), from which a prefix-aware router
//! mirrors the contents of a cache.
//!
//! A mirror that starts empty and applies all events in order holds exactly the prefixes that
//! `Prefix::lookup` can hit. With recurrent states, a hit ends at the last block of such a prefix
//! that has a checkpoint. If the log overflows before its events are taken, `AllBlocksCleared` and
//! events that store the current contents replace them. Guarded by `tests/shadow`,
//! `tests/event_overflow.rs` and `tests/states/mirror.rs`.

use crate::contract::ids::Token;
use serde::{Deserialize, Serialize};

/// A change of the prefix cache, with the fields of vLLM's KV events; vLLM has no events of
/// checkpoints. Hashes are those of [`prefix_hashes`](crate::prefix_hashes).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvEvent {
    /// Blocks were published to the prefix cache, each the child of the one before.
    BlockStored {
        /// Their hashes.
        hashes: Vec<u64>,
        /// Hash of the first block's parent; `None` at the beginning of a prompt.
        parent: Option<u64>,
        /// Their tokens.
        tokens: Vec<Token>,
        /// Tokens per block.
        block_size: u32,
        /// The tenant's salt if `parent` is `None`, so that the first block begins a prompt; else
        /// 0.
        #[serde(default)]
        salt: u64,
    },
    /// Lookups no longer find these blocks.
    BlockRemoved {
        /// Their hashes.
        hashes: Vec<u64>,
    },
    /// Lookups find a checkpoint of the recurrent state at the end of a block. `BlockRemoved` of
    /// the block may precede `CheckpointRemoved`.
    CheckpointStored {
        /// Hash of the block.
        hash: u64,
    },
    /// Lookups no longer find a checkpoint at the end of a block.
    CheckpointRemoved {
        /// Hash of the block.
        hash: u64,
    },
    /// The whole prefix cache was dropped, checkpoints included.
    AllBlocksCleared,
}

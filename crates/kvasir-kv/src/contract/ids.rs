//! Integer ids of the KV cache: token, position, slot, block, pool, sequence and step.
//!
//! `SeqId` carries a use count beside the table index, so an id is never issued twice and a stale
//! id is recognized.

use serde::{Deserialize, Serialize};

/// A token id.
pub type Token = u32;
/// A token's index in its own sequence.
pub type Position = u32;
/// Storage for one token's K and V in every layer.
pub type Slot = u32;
/// A block of `block_size` slots, the unit of allocation; block `b` holds slots `b * block_size
/// ..`.
pub type BlockId = u32;

/// The pool of a segment or a state: 0 is the session's own, others hold frozen prefixes
/// (`SharedPrefix`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolId(pub u32);

/// One sequence inside one cache. Low half: table index; high half: use count of that entry. An id
/// is never issued twice, so a stale one is recognized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SeqId(pub u64);

impl SeqId {
    /// The id for table entry `index` in its `use_count`-th use.
    pub fn new(index: u32, use_count: u32) -> Self {
        Self(u64::from(use_count) << 32 | u64::from(index))
    }

    /// The table index.
    pub fn index(self) -> usize {
        self.0 as u32 as usize
    }

    /// How often the entry had been used when this id was issued.
    pub fn use_count(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// One step, numbered by the engine in the order of submission; steps retire in that order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepId(pub u64);

//! `PrefixMap`: which replicas hold a block, or a checkpoint at its end, by chained block hash.
//!
//! Most blocks are held by one replica, which is stored inline. A block that several replicas hold
//! has a sorted list of them on the heap.

use kvasir_kv::BlockHashMap;
use std::collections::hash_map::Entry;

/// The replicas that hold a block, sorted; a multiset, because several outstanding requests
/// of one replica may expect the same block.
#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "a vector in place makes every entry of the map a third larger")]
enum Holders {
    One(u32),
    Many(Box<Vec<u32>>),
}

impl Holders {
    fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(replica) => std::slice::from_ref(replica),
            Self::Many(replicas) => replicas,
        }
    }

    fn insert(&mut self, replica: u32) {
        match self {
            Self::One(other) => {
                *self = Self::Many(Box::new(vec![(*other).min(replica), replica.max(*other)]))
            }
            Self::Many(replicas) => {
                replicas.insert(replicas.partition_point(|&other| other < replica), replica);
            }
        }
    }

    /// Removes one entry of a replica. True if the list is then empty.
    fn remove(&mut self, replica: u32) -> bool {
        match self {
            Self::One(other) => *other == replica,
            Self::Many(replicas) => {
                if let Ok(at) = replicas.binary_search(&replica) {
                    replicas.remove(at);
                }
                if let [last] = replicas[..] {
                    *self = Self::One(last);
                }
                false
            }
        }
    }
}

/// Replicas by the hash of a block that they hold, or are expected to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixMap {
    blocks: BlockHashMap<Holders>,
}

impl PrefixMap {
    /// The replicas that hold a block, sorted.
    pub(crate) fn holders(&self, hash: u64) -> &[u32] {
        self.blocks.get(&hash).map_or(&[], Holders::as_slice)
    }

    /// Whether a replica holds a block.
    pub(crate) fn is_held_by(&self, hash: u64, replica: u32) -> bool {
        self.holders(hash).binary_search(&replica).is_ok()
    }

    /// Adds an entry of a replica, even if it has one.
    pub(crate) fn add(&mut self, hash: u64, replica: u32) {
        match self.blocks.entry(hash) {
            Entry::Vacant(entry) => _ = entry.insert(Holders::One(replica)),
            Entry::Occupied(mut entry) => entry.get_mut().insert(replica),
        }
    }

    /// Adds an entry of a replica, unless it has one.
    pub(crate) fn set(&mut self, hash: u64, replica: u32) {
        if !self.is_held_by(hash, replica) {
            self.add(hash, replica);
        }
    }

    /// Removes one entry of a replica from a block.
    pub(crate) fn remove(&mut self, hash: u64, replica: u32) {
        if let Entry::Occupied(mut entry) = self.blocks.entry(hash)
            && entry.get_mut().remove(replica)
        {
            entry.remove();
        }
    }

    /// Removes all entries of a replica. Linear in the blocks of all replicas.
    pub(crate) fn clear(&mut self, replica: u32) {
        self.blocks.retain(|_, holders| {
            while holders.as_slice().binary_search(&replica).is_ok() {
                if holders.remove(replica) {
                    return false;
                }
            }
            true
        });
    }

    /// Number of distinct blocks that any replica holds.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}

//! `PrefixMap`: which replicas hold a block, by chained block hash.
//!
//! Most blocks are held by one replica, which takes no heap memory. A block that many replicas hold
//! has a sorted list of them.

use kvasir_kv::BlockHashMap;
use std::collections::hash_map::Entry;

/// The replicas that hold a block, sorted; a replica may be listed several times.
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

    /// Removes a replica once. True if none is left.
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

/// Replicas by the hash of a block that they hold, or are about to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixMap {
    blocks: BlockHashMap<Holders>,
}

impl PrefixMap {
    /// The replicas that hold a block, sorted.
    pub(crate) fn holders(&self, hash: u64) -> &[u32] {
        self.blocks.get(&hash).map_or(&[], Holders::as_slice)
    }

    /// Lists a replica once more.
    pub(crate) fn add(&mut self, hash: u64, replica: u32) {
        match self.blocks.entry(hash) {
            Entry::Vacant(entry) => _ = entry.insert(Holders::One(replica)),
            Entry::Occupied(mut entry) => entry.get_mut().insert(replica),
        }
    }

    /// Lists a replica, unless it is listed already.
    pub(crate) fn set(&mut self, hash: u64, replica: u32) {
        if self.holders(hash).binary_search(&replica).is_err() {
            self.add(hash, replica);
        }
    }

    /// Takes a replica off the list of a block, once.
    pub(crate) fn remove(&mut self, hash: u64, replica: u32) {
        if let Entry::Occupied(mut entry) = self.blocks.entry(hash)
            && entry.get_mut().remove(replica)
        {
            entry.remove();
        }
    }

    /// Takes a replica off all lists. Linear in the blocks of all replicas.
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

    /// Number of blocks that a replica holds.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}

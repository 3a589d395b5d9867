//! `LoadOrder`: available replicas by load; `Load`: the outstanding work of a replica.
//!
//! An ordered set of (load, replica): finding the least loaded replica and changing a load take
//! O(log n).

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Outstanding load of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Outstanding requests.
    pub requests: u64,
    /// Prompt tokens of these requests.
    pub tokens: u64,
}

/// Sort key of a load under the policy, compared lexicographically.
pub(crate) type LoadKey = (u64, u64);

/// Available replicas by load key, then by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadOrder {
    order: BTreeSet<(LoadKey, u32)>,
}

impl LoadOrder {
    pub(crate) fn insert(&mut self, key: LoadKey, replica: u32) {
        self.order.insert((key, replica));
    }

    pub(crate) fn remove(&mut self, key: LoadKey, replica: u32) {
        self.order.remove(&(key, replica));
    }

    pub(crate) fn contains(&self, key: LoadKey, replica: u32) -> bool {
        self.order.contains(&(key, replica))
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Replicas, least loaded first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LoadKey, u32)> + '_ {
        self.order.iter().copied()
    }

    /// The least loaded replica; ties go to the first index from `start` on, cyclically.
    pub(crate) fn least_loaded(&self, start: u32) -> Option<u32> {
        let &(key, first) = self.order.first()?;
        let next = self.order.range((key, start)..).next().filter(|(other, _)| *other == key);
        Some(next.map_or(first, |(_, replica)| *replica))
    }
}

//! Memory that API keys share fairly: bytes held per key.
//!
//! While all keys together are within the limit, each may take more. Beyond it, only keys within their
//! equal share may, so that no key locks others out; the total stays below twice the limit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Bytes held, per key that holds any.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory(Mutex<HashMap<u64, usize>>);

/// Bytes that count toward a key until drop.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    memory: Arc<SharedMemory>,
    owner: u64,
    bytes: usize,
}

impl SharedMemory {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        // No holder of the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes toward a key.
    pub(crate) fn hold(self: &Arc<Self>, owner: u64, bytes: usize) -> HeldBytes {
        *self.lock().entry(owner).or_default() += bytes;
        HeldBytes { memory: self.clone(), owner, bytes }
    }

    /// Bytes of all keys.
    pub(crate) fn total(&self) -> usize {
        self.lock().values().sum()
    }

    /// The bytes of a key that may take no more under this limit; `None` if it may.
    pub(crate) fn excess(&self, owner: u64, limit: usize) -> Option<usize> {
        let held = self.lock();
        let own = held.get(&owner).copied().unwrap_or(0);
        let keys = held.len() + usize::from(!held.contains_key(&owner));
        let is_full = held.values().sum::<usize>() > limit;
        (is_full && own > limit / keys).then_some(own)
    }

    /// The key that holds most.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.lock().iter().max_by_key(|(owner, bytes)| (**bytes, **owner)).map(|(owner, _)| *owner)
    }
}

impl HeldBytes {
    /// Number of bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts further bytes toward the same key.
    pub(crate) fn grow(&mut self, more: usize) {
        *self.memory.lock().entry(self.owner).or_default() += more;
        self.bytes += more;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let mut held = self.memory.lock();
        if let Some(bytes) = held.get_mut(&self.owner) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                held.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_memory_refuses_those_beyond_their_share_only() {
        let memory = Arc::<SharedMemory>::default();
        let first = memory.hold(1, 101);
        assert_eq!((memory.excess(1, 100), memory.excess(2, 100)), (Some(101), None));
        let second = memory.hold(2, 51);
        assert_eq!(
            (memory.excess(1, 100), memory.excess(2, 100), memory.excess(3, 100)),
            (Some(101), Some(51), None)
        );
        assert_eq!((memory.total(), memory.largest()), (152, Some(1)));
        drop(first);
        assert_eq!((memory.excess(1, 100), memory.excess(2, 100)), (None, None));
        drop(second);
        assert_eq!((memory.total(), memory.largest()), (0, None));
    }
}

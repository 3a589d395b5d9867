//! Erasure of the prefixes that a key has cached: requests after it have another prefix-cache salt, so
//! they find nothing of before. The K/V itself is evicted when its slots are needed.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// How often each API key has erased its cached prefixes.
#[derive(Default)]
pub(crate) struct Erasures(Mutex<HashMap<u64, u64>>);

impl Erasures {
    /// Erases the cached prefixes of a key.
    pub(crate) fn erase(&self, key: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }

    /// Number of erasures of a key.
    pub(crate) fn of(&self, key: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied().unwrap_or_default()
    }
}

//! Erasure of an API key's cached prefixes: it changes the prefix-cache salt of the key's later
//! requests, so they miss all earlier entries. The K/V itself is evicted when its slots are needed.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Number of erasures of each API key.
#[derive(Default)]
pub(crate) struct Erasures(Mutex<HashMap<u64, u64>>);

impl Erasures {
    /// Invalidates the cached prefixes of a key.
    pub(crate) fn erase(&self, key: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }

    /// Number of erasures of a key.
    pub(crate) fn of(&self, key: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied().unwrap_or_default()
    }
}

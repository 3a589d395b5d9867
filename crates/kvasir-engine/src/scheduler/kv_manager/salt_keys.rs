//! `SaltKeys`: the API key that each recent prefix-cache salt belongs to. A client may learn that
//! its prompt is cached under another salt only if that salt belongs to its own key.

use kvasir_kv::ShortHit;
use std::collections::HashMap;

/// Maximum number of salts in a generation.
const GENERATION: usize = 4096;

/// The API keys of the newest salts, in two generations. A full generation replaces the one before
/// it.
#[derive(Debug, Default)]
pub(crate) struct SaltKeys {
    newer: HashMap<u64, u64>,
    older: HashMap<u64, u64>,
    /// Whether a request had an API key.
    has_keys: bool,
}

impl SaltKeys {
    /// Records that a request of `key` uses `salt`.
    pub(crate) fn note(&mut self, salt: u64, key: u64) {
        self.has_keys |= key != 0;
        if self.newer.len() >= GENERATION && !self.newer.contains_key(&salt) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(salt, key);
    }

    /// The reason that a client of `key` may know. An unknown salt counts as that of another key,
    /// unless no request has a key.
    pub(crate) fn public(&self, short: ShortHit, other_salt: u64, key: u64) -> ShortHit {
        let owner = || self.newer.get(&other_salt).or_else(|| self.older.get(&other_salt));
        match short {
            ShortHit::OtherKey if self.has_keys && owner() != Some(&key) => ShortHit::NeverComputed,
            short => short,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_salts_are_told_to_their_own_key_only() {
        let mut keys = SaltKeys::default();
        let other_key = ShortHit::OtherKey;
        keys.note(10, 0);
        assert_eq!(keys.public(other_key, 11, 0), other_key, "no request has a key");
        keys.note(20, 1);
        keys.note(21, 1);
        assert_eq!(keys.public(other_key, 21, 1), other_key);
        for (salt, key) in [(20, 2), (10, 1), (99, 1), (20, 0)] {
            assert_eq!(keys.public(other_key, salt, key), ShortHit::NeverComputed, "{salt} for {key}");
        }
        assert_eq!(keys.public(ShortHit::Evicted, 20, 2), ShortHit::Evicted);
        (0..2 * GENERATION as u64).for_each(|salt| keys.note(1000 + salt, 3));
        assert_eq!(keys.public(other_key, 20, 1), ShortHit::NeverComputed, "the salt is forgotten");
        assert!(keys.newer.len() + keys.older.len() <= 2 * GENERATION);
    }
}

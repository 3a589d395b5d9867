//! `SaltKeys`: the API key that each recent prefix-cache salt belongs to. A client may learn that
//! its prompt is cached under another salt only if that salt belongs to its own key.

use kvasir_kv::CacheEnd;
use std::collections::HashMap;

/// Maximum number of salts in a generation.
const GENERATION: usize = 4096;

/// The API keys of the newest salts, in two generations. A full generation replaces the one before
/// it.
#[derive(Debug, Default)]
pub(crate) struct SaltKeys {
    newer: HashMap<u64, u64>,
    older: HashMap<u64, u64>,
    /// Whether any request has had an API key.
    has_keys: bool,
}

impl SaltKeys {
    /// Records that a request of `key` uses `salt`.
    pub(crate) fn record(&mut self, salt: u64, key: u64) {
        self.has_keys |= key != 0;
        if self.newer.len() >= GENERATION && !self.newer.contains_key(&salt) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(salt, key);
    }

    /// The reason that a client of `key` may see. A salt that is not recorded counts as another
    /// key's, unless no request has had a key.
    pub(crate) fn public_reason(&self, cache_end: CacheEnd, other_salt: u64, key: u64) -> CacheEnd {
        let owner = || self.newer.get(&other_salt).or_else(|| self.older.get(&other_salt));
        match cache_end {
            CacheEnd::OtherKey if self.has_keys && owner() != Some(&key) => CacheEnd::NeverComputed,
            cache_end => cache_end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_salt_is_reported_to_its_own_key_only() {
        let mut keys = SaltKeys::default();
        let other_key = CacheEnd::OtherKey;
        keys.record(10, 0);
        assert_eq!(keys.public_reason(other_key, 11, 0), other_key, "no request has a key");
        keys.record(20, 1);
        keys.record(21, 1);
        assert_eq!(keys.public_reason(other_key, 21, 1), other_key);
        for (salt, key) in [(20, 2), (10, 1), (99, 1), (20, 0)] {
            assert_eq!(keys.public_reason(other_key, salt, key), CacheEnd::NeverComputed, "{salt} for {key}");
        }
        assert_eq!(keys.public_reason(CacheEnd::Evicted, 20, 2), CacheEnd::Evicted);
        (0..2 * GENERATION as u64).for_each(|salt| keys.record(1000 + salt, 3));
        assert_eq!(keys.public_reason(other_key, 20, 1), CacheEnd::NeverComputed, "the salt is forgotten");
        assert!(keys.newer.len() + keys.older.len() <= 2 * GENERATION);
    }
}

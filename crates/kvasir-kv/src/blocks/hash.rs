//! Chained block hashes of the prefix cache: `h_i = xxh64(h_{i-1} ‖ tokens_i)`, a stable format that
//! the caches, the router over replicas and KV events share.
//!
//! A tenant's salt, if not 0, is the parent hash of its first block.

use crate::contract::ids::Token;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use xxhash_rust::xxh64::xxh64;

/// Chained hash of a full block: xxh64 with seed 0 over the parent's hash as 8 bytes (omitted for
/// the first block), then each token as 8 bytes, all little-endian. Routers compute the same
/// hashes.
pub fn block_hash(parent: Option<u64>, tokens: &[Token]) -> u64 {
    hash_with(parent, tokens, &mut Vec::new())
}

/// [`block_hash`] with a reusable scratch buffer.
pub(crate) fn hash_with(parent: Option<u64>, tokens: &[Token], words: &mut Vec<u64>) -> u64 {
    words.clear();
    words.extend(parent.map(u64::to_le));
    words.extend(tokens.iter().map(|&token| u64::from(token).to_le()));
    xxh64(bytemuck::cast_slice(words), 0)
}

/// The `parent` of a tenant's first block in [`block_hash`].
pub(crate) fn root_hash(salt: u64) -> Option<u64> {
    (salt != 0).then_some(salt)
}

/// The hashes of the full blocks of `tokens` from position 0 on, as the caches compute them for a
/// tenant's `salt`. A `block_size` of 0 counts as 1.
pub fn prefix_hashes(tokens: &[Token], salt: u64, block_size: u32) -> impl Iterator<Item = u64> + '_ {
    let (mut parent, mut words) = (root_hash(salt), Vec::new());
    tokens.chunks_exact(block_size.max(1) as usize).map(move |tokens| {
        let hash = hash_with(parent, tokens, &mut words);
        parent = Some(hash);
        hash
    })
}

/// A map keyed by block hashes, which it does not hash again.
pub type BlockHashMap<V> = HashMap<u64, V, BuildHasherDefault<PrecomputedHash>>;

/// The identity hasher of [`BlockHashMap`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PrecomputedHash(u64);

impl Hasher for PrecomputedHash {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &byte| hash.rotate_left(8) ^ u64::from(byte));
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::hash::*;

    #[test]
    fn block_hashes_follow_the_documented_format() {
        let first = block_hash(None, &[1, 2, 3, 4]);
        assert_eq!(first, 8356527653647720045);
        assert_eq!(block_hash(Some(first), &[5, 6, 7, 8]), 610383040053763902);
        assert_eq!(block_hash(Some(0), &[1, 2, 3, 4]), 14376776624401366104);
        assert_eq!(block_hash(None, &[]), 17241709254077376921);
        assert_eq!(block_hash(None, &[0; 256]), 0x09223f92a4d83e02);
    }

    #[test]
    fn prefix_hashes_chain_full_blocks_after_the_salt() {
        let hashes = |salt| prefix_hashes(&[1, 2, 3, 4, 5], salt, 2).collect::<Vec<_>>();
        let first = block_hash(None, &[1, 2]);
        assert_eq!(hashes(0), [first, block_hash(Some(first), &[3, 4])]);
        assert_eq!(hashes(9)[0], block_hash(Some(9), &[1, 2]));
    }
}

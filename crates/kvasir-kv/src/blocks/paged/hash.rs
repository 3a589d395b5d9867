//! Chained block hash of the prefix cache: `h_i = xxh64(h_{i-1} ‖ tokens_i)`, a stable format that
//! routers compute too.

use crate::contract::ids::Token;
use xxhash_rust::xxh64::xxh64;

/// Chained hash of a full block: xxh64 with seed 0 over the parent's hash as 8 bytes (omitted for
/// the first block), then each token as 8 bytes, all little-endian. Routers compute the same.
pub fn block_hash(parent: Option<u64>, tokens: &[Token]) -> u64 {
    hash_with(parent, tokens, &mut Vec::new())
}

/// [`block_hash`] with scratch memory.
pub(crate) fn hash_with(parent: Option<u64>, tokens: &[Token], words: &mut Vec<u64>) -> u64 {
    words.clear();
    words.extend(parent.map(u64::to_le));
    words.extend(tokens.iter().map(|&token| u64::from(token).to_le()));
    xxh64(bytemuck::cast_slice(words), 0)
}

#[cfg(test)]
mod tests {
    use crate::blocks::paged::hash::*;

    #[test]
    fn block_hashes_follow_the_documented_format() {
        let first = block_hash(None, &[1, 2, 3, 4]);
        assert_eq!(first, 8356527653647720045);
        assert_eq!(block_hash(Some(first), &[5, 6, 7, 8]), 610383040053763902);
        assert_eq!(block_hash(Some(0), &[1, 2, 3, 4]), 14376776624401366104);
        assert_eq!(block_hash(None, &[]), 17241709254077376921);
        assert_eq!(block_hash(None, &[0; 256]), 0x09223f92a4d83e02);
    }
}

//! `KnownBlocks`: which prompt blocks any replica has computed so far, as a Bloom filter whose bits of
//! a block lie in one word.
//!
//! A prompt block that is known, and that the replica of a request nevertheless computes, is a lost
//! prefix: it was evicted, or another replica holds it. The filter takes a block for known by
//! mistake in about 1 % of lookups at its capacity, so a chain of blocks ends at most a few blocks
//! late.

/// Bits per block at capacity, and bits set per block.
const BITS_PER_BLOCK: u64 = 16;
const SET_BITS: u32 = 4;
/// Words of the largest filter, 256 MiB.
const MAX_WORDS: u64 = 1 << 25;

/// A set of block hashes in fixed memory.
#[derive(Debug)]
pub(crate) struct KnownBlocks {
    words: Vec<u64>,
}

impl KnownBlocks {
    /// A filter for about this many blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        let words = blocks.saturating_mul(BITS_PER_BLOCK) / 64;
        Self { words: vec![0; words.clamp(1 << 10, MAX_WORDS).next_power_of_two() as usize] }
    }

    /// Word of a hash, and its bits. Block hashes are uniform in all of their bits.
    fn place(&self, hash: u64) -> (usize, u64) {
        let mut bits = 0;
        for i in 0..SET_BITS {
            bits |= 1 << (hash >> (6 * i) & 63);
        }
        ((hash >> 32) as usize & (self.words.len() - 1), bits)
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        let (word, bits) = self.place(hash);
        self.words[word] |= bits;
    }

    /// Number of leading hashes of a prompt that are known.
    pub(crate) fn leading(&self, hashes: impl Iterator<Item = u64>) -> u32 {
        let mut known = 0;
        for hash in hashes {
            let (word, bits) = self.place(hash);
            if self.words[word] & bits != bits {
                break;
            }
            known += 1;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_sample::mix;

    #[test]
    fn inserted_blocks_are_known_and_few_others() {
        let mut known = KnownBlocks::new(10_000);
        (0..10_000u64).for_each(|hash| known.insert(mix(hash)));
        assert_eq!(known.leading((0..10_000).map(mix)), 10_000);
        let is_known = |hash: &u64| known.leading(std::iter::once(mix(*hash))) > 0;
        let wrong = (10_000..110_000u64).filter(is_known).count();
        assert!(wrong < 2500, "{wrong}");
    }
}

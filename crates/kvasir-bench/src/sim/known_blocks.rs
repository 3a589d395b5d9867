//! `KnownBlocks`: which prompt blocks any replica has computed so far, as a Bloom filter.
//!
//! A prompt block that is known, and that the replica of a request nevertheless computes, is a lost
//! prefix: it was evicted, or another replica holds it. The filter takes a block for known by
//! mistake in about 1 % of lookups at its capacity, so a chain of blocks ends at most a few blocks
//! late.

use kvasir_sample::mix;

/// Bits per block at capacity, and probes per block.
const BITS_PER_BLOCK: u64 = 10;
const PROBES: u64 = 5;
/// Bits of the largest filter, 128 MiB.
const MAX_BITS: u64 = 1 << 30;

/// A set of block hashes in fixed memory.
#[derive(Debug)]
pub(crate) struct KnownBlocks {
    words: Vec<u64>,
    mask: u64,
}

impl KnownBlocks {
    /// A filter for about this many blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        let bits = blocks.saturating_mul(BITS_PER_BLOCK).clamp(1 << 16, MAX_BITS).next_power_of_two();
        Self { words: vec![0; (bits / 64) as usize], mask: bits - 1 }
    }

    fn probes(&self, hash: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (first, stride, mask) = (mix(hash), mix(!hash) | 1, self.mask);
        (0..PROBES).map(move |i| {
            let bit = first.wrapping_add(stride.wrapping_mul(i)) & mask;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        for (word, bit) in self.probes(hash) {
            self.words[word] |= bit;
        }
    }

    /// Number of leading hashes of a prompt that are known.
    pub(crate) fn leading(&self, mut hashes: impl Iterator<Item = u64>) -> u32 {
        let mut known = 0;
        while hashes
            .next()
            .is_some_and(|hash| self.probes(hash).all(|(word, bit)| self.words[word] & bit != 0))
        {
            known += 1;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_blocks_are_known_and_few_others() {
        let mut known = KnownBlocks::new(10_000);
        (0..10_000u64).for_each(|hash| known.insert(hash));
        assert_eq!(known.leading(0..10_000), 10_000);
        let wrong = (10_000..110_000u64).filter(|hash| known.leading(std::iter::once(*hash)) > 0).count();
        assert!(wrong < 1500, "{wrong}");
    }
}

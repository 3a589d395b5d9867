//! `ComputedBlocks`: a Bloom filter of the prompt blocks that any replica has computed so far. The bits
//! of a block lie in one word.
//!
//! A block of the filter that the replica of a request must compute again is a lost prefix: it was
//! evicted, or another replica holds it. At capacity, the false-positive rate is about 1 %, so
//! [`ComputedBlocks::prefix_len`] rarely overestimates by more than one block.

/// Bits per block at capacity, and bits set per block.
const BITS_PER_BLOCK: u64 = 16;
const SET_BITS: u32 = 4;
/// Words of the largest filter, 256 MiB.
const MAX_WORDS: u64 = 1 << 25;

/// A set of block hashes in fixed memory.
#[derive(Debug)]
pub(crate) struct ComputedBlocks {
    words: Vec<u64>,
}

impl ComputedBlocks {
    /// A filter for about this many blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        let words = blocks.saturating_mul(BITS_PER_BLOCK) / 64;
        Self { words: vec![0; words.clamp(1 << 10, MAX_WORDS).next_power_of_two() as usize] }
    }

    /// Word of a hash, and its bits. Block hashes are uniform in all of their bits.
    fn position(&self, hash: u64) -> (usize, u64) {
        let mut bits = 0;
        for i in 0..SET_BITS {
            bits |= 1 << (hash >> (6 * i) & 63);
        }
        ((hash >> 32) as usize & (self.words.len() - 1), bits)
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        let (word, bits) = self.position(hash);
        self.words[word] |= bits;
    }

    /// Number of leading blocks of a prompt, given by its prefix hashes, that the filter contains.
    pub(crate) fn prefix_len(&self, hashes: impl Iterator<Item = u64>) -> u32 {
        let mut blocks = 0;
        for hash in hashes {
            let (word, bits) = self.position(hash);
            if self.words[word] & bits != bits {
                break;
            }
            blocks += 1;
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_sample::mix;

    #[test]
    fn the_filter_has_no_false_negatives_and_few_false_positives() {
        let mut computed = ComputedBlocks::new(10_000);
        (0..10_000u64).for_each(|hash| computed.insert(mix(hash)));
        assert_eq!(computed.prefix_len((0..10_000).map(mix)), 10_000);
        let is_contained = |hash: &u64| computed.prefix_len(std::iter::once(mix(*hash))) > 0;
        let false_positives = (10_000..110_000u64).filter(is_contained).count();
        assert!(false_positives < 2500, "{false_positives}");
    }
}

//! Run detection in block lists: consecutive ids, equal prefixes and leading matches, compared in
//! strides that vectorize (SIMD).
//!
//! What must be done for every block of a long table is done per range of ids instead.

use crate::contract::ids::BlockId;
use std::ops::Range;

/// Number of leading items for which `is(index, item)` holds. Long matches are tested in strides
/// without early exit, which vectorizes (SIMD).
pub(crate) fn leading<T>(items: &[T], is: impl Fn(usize, &T) -> bool) -> usize {
    const FIRST: usize = 8;
    const STRIDE: usize = 64;
    let all = |from: usize, items: &[T]| {
        items.iter().enumerate().fold(true, |all, (i, item)| all & is(from + i, item))
    };
    let mut len = FIRST.min(items.len());
    if !all(0, &items[..len]) {
        len = 0;
    } else {
        for stride in items[len..].chunks_exact(STRIDE) {
            if !all(len, stride) {
                break;
            }
            len += STRIDE;
        }
    }
    len + items[len..].iter().enumerate().take_while(|&(i, item)| is(len + i, item)).count()
}

/// The maximal runs of consecutive ids in `blocks`, as ranges: bulk work is done per range instead
/// of per block.
pub(crate) fn runs(blocks: &[BlockId]) -> impl Iterator<Item = Range<BlockId>> + '_ {
    let mut rest = blocks;
    std::iter::from_fn(move || {
        let &first = rest.first()?;
        let len = leading(rest, |i, &block| block == first.wrapping_add(i as u32));
        rest = &rest[len..];
        Some(first..first + len as u32)
    })
}

/// Length of the common prefix of two lists of tokens or blocks.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    const STRIDE: usize = 256;
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    // Whole strides compare as memory (memcmp); only the one that differs is compared by element.
    let strides = a.chunks(STRIDE).zip(b.chunks(STRIDE)).take_while(|(a, b)| a == b);
    let same = (strides.count() * STRIDE).min(len);
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// A range of block ids as a range of indices.
pub(crate) fn indices(blocks: &Range<BlockId>) -> Range<usize> {
    blocks.start as usize..blocks.end as usize
}

#[cfg(test)]
mod tests {
    use crate::shared::runs::*;
    use kvasir_testkit::{Random, rounds};

    #[test]
    fn runs_of_every_length_are_found() {
        for total in [0usize, 1, 7, 8, 9, 71, 72, 73, 200, 500] {
            for good in 0..=total {
                let items: Vec<bool> = (0..total).map(|i| i < good || i % 3 > good % 3).collect();
                let want = items.iter().take_while(|item| **item).count();
                assert_eq!(leading(&items, |_, item| *item), want, "{good} of {total}");
            }
        }
    }

    #[test]
    fn runs_concatenate_to_the_list() {
        let mut random = Random::new(9);
        for _ in 0..rounds(300) {
            let (mut blocks, mut lens) = (Vec::new(), 0);
            for _ in 0..5 {
                let state = random.bits();
                let (first, len) = ((state >> 40) as u32 % 1000, (state >> 33) as u32 % 150);
                blocks.extend(first..first + len);
                lens += usize::from(len > 0);
            }
            assert!(runs(&blocks).flatten().eq(blocks.iter().copied()));
            assert!(runs(&blocks).count() <= lens);
        }
    }
}

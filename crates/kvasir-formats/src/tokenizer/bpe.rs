//! The byte pair encoding (BPE) merge loop.
//!
//! 1. Push all adjacent pairs that have a merge onto a min-heap by (rank, position).
//! 2. Pop the best pair, skip it if stale, merge it in a linked list, and push the two new neighbor
//!    pairs.
//!
//! Time O(n log n) for any text; unit tests compare with the naive algorithm.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Marks a symbol without a token.
pub(super) const NONE: u32 = u32::MAX;

/// Merges adjacent symbols, lowest rank first and leftmost among equals, until no pair is
/// mergeable.
///
/// `pair` returns a pair's rank and merged symbol.
pub(super) fn merge<R: Ord + Copy>(
    symbols: &mut Vec<u32>,
    mut pair: impl FnMut(u32, u32) -> Option<(R, u32)>,
) {
    let n = symbols.len();
    if n < 2 {
        return;
    }
    let mut next: Vec<usize> = (1..=n).collect();
    let mut previous: Vec<usize> = (0..n).map(|i| i.wrapping_sub(1)).collect();
    let mut alive = vec![true; n];
    let mut heap = BinaryHeap::new();
    let mut offer = |heap: &mut BinaryHeap<_>, symbols: &[u32], left: usize, right: usize| {
        if let Some((rank, into)) = pair(symbols[left], symbols[right]) {
            heap.push(Reverse((rank, left, right, symbols[left], symbols[right], into)));
        }
    };
    for i in 0..n - 1 {
        offer(&mut heap, symbols, i, i + 1);
    }
    while let Some(Reverse((_, left, right, a, b, into))) = heap.pop() {
        // An entry is stale once either of its symbols was merged.
        if !alive[left] || !alive[right] || next[left] != right || symbols[left] != a || symbols[right] != b {
            continue;
        }
        symbols[left] = into;
        alive[right] = false;
        next[left] = next[right];
        if let Some(p) = previous.get_mut(next[right]) {
            *p = left;
        }
        if next[left] < n {
            offer(&mut heap, symbols, left, next[left]);
        }
        if previous[left] < n {
            offer(&mut heap, symbols, previous[left], left);
        }
    }
    let mut at = 0;
    symbols.retain(|_| {
        at += 1;
        alive[at - 1]
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::Random;
    use std::collections::HashMap;

    /// A ranked merge table over ids.
    #[derive(Default)]
    struct Merges(HashMap<(u32, u32), (u32, u32)>);

    impl Merges {
        fn add(&mut self, left: u32, right: u32, into: u32) {
            let rank = self.0.len() as u32;
            self.0.entry((left, right)).or_insert((rank, into));
        }

        fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
            self.0.get(&(left, right)).copied()
        }
    }

    #[test]
    fn merges_apply_by_rank() {
        // Ids: a=0 b=1 c=2 ab=3 bc=4 abc=5.
        let mut merges = Merges::default();
        merges.add(1, 2, 4);
        merges.add(0, 1, 3);
        merges.add(3, 2, 5);
        let mut word = vec![0, 1, 2, 0, 1];
        merge(&mut word, |a, b| merges.get(a, b));
        assert_eq!(word, [0, 4, 3]);
    }

    #[test]
    fn a_long_run_of_one_symbol_is_not_quadratic() {
        // Recursive pairs: every level merges the whole word.
        let mut word = vec![0; 1 << 20];
        merge(&mut word, |a, b| (a == b && a < 20).then_some((a, a + 1)));
        assert_eq!(word, [20]);
    }

    #[test]
    fn merging_agrees_with_a_naive_loop() {
        let mut random = Random::new(1);
        for _ in 0..500 {
            let mut merges = Merges::default();
            for into in 4..24u32 {
                merges.add(random.below(into.into()) as u32, random.below(into.into()) as u32, into);
            }
            let mut word: Vec<u32> = (0..random.below(30)).map(|_| random.below(4) as u32).collect();
            let mut naive = word.clone();
            merge(&mut word, |a, b| merges.get(a, b));
            while let Some((_, i, into)) = (1..naive.len())
                .filter_map(|i| merges.get(naive[i - 1], naive[i]).map(|(rank, into)| (rank, i, into)))
                .min()
            {
                naive[i - 1] = into;
                naive.remove(i);
            }
            assert_eq!(word, naive);
        }
    }
}

//! `RecentSet`: the newest members of a set of 64-bit numbers, in memory of fixed size.
//!
//! Two generations of members. A full newer generation replaces the older one, so at least the last
//! `capacity` and at most the last `2 × capacity` insertions are known. All memory is reserved at
//! construction: a table that is at most half full never grows, even after removals.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

/// Multiplicative hash of one number. It spreads consecutive numbers as well as block hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The table takes its index from the low bits and a tag from the high ones.
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

type Numbers = HashSet<u64, BuildHasherDefault<NumberHasher>>;

/// The newest members.
#[derive(Clone, Debug)]
pub(crate) struct RecentSet {
    newer: Numbers,
    older: Numbers,
    capacity: usize,
}

impl RecentSet {
    /// An empty set whose generations have at most `capacity` members.
    pub(crate) fn new(capacity: usize) -> Self {
        let empty = || Numbers::with_capacity_and_hasher(2 * capacity, BuildHasherDefault::default());
        Self { newer: empty(), older: empty(), capacity }
    }

    /// Adds a number. Drops the older generation if the newer one is full.
    pub(crate) fn insert(&mut self, number: u64) {
        if self.capacity == 0 {
            return;
        }
        if self.newer.len() == self.capacity {
            std::mem::swap(&mut self.newer, &mut self.older);
            self.newer.clear();
        }
        self.newer.insert(number);
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.newer.remove(&number);
        self.older.remove(&number);
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.newer.contains(&number) || self.older.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use crate::shared::recent_set::*;

    #[test]
    fn the_last_insertions_are_known_in_fixed_memory() {
        let mut set = RecentSet::new(100);
        let reserved = set.newer.capacity();
        for number in 0..10_000_u64 {
            set.insert(number);
            if number % 3 == 0 {
                set.remove(number);
            }
            assert!((number.saturating_sub(99)..=number).all(|n| set.contains(n) == (n % 3 != 0)));
        }
        assert_eq!((set.newer.capacity(), set.older.capacity()), (reserved, reserved));
        assert!(!set.contains(9_000), "older insertions are forgotten");
        let mut empty = RecentSet::new(0);
        empty.insert(1);
        assert!(!empty.contains(1));
    }
}

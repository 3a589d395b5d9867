//! `IdSet`: a hierarchical bitmap over small integers with find-lowest, insert and remove in
//! O(log64 n).
//!
//! Level 0 has one bit per id; each level above has one bit per non-empty word, up to a single
//! word. The free lists of `cells` and `paged` use it to allocate the lowest free id first. Its
//! test compares it with a `BTreeSet`.

/// A set of small integers with fast find-lowest: `levels[0]` has a bit per id, each further level
/// a bit per non-empty word below.
#[derive(Clone, Debug)]
pub(crate) struct IdSet {
    levels: Vec<Vec<u64>>,
    len: u32,
}

impl IdSet {
    /// An empty set of ids below `bound`.
    pub(crate) fn new(bound: u32) -> Self {
        let mut levels = Vec::new();
        let mut bits = bound as usize;
        loop {
            let words = bits.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels, len: 0 };
            }
            bits = words;
        }
    }

    /// Number of members.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Whether `id` is a member.
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.levels[0].get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Adds `id`; returns whether it was absent.
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        if self.contains(id) {
            return false;
        }
        self.len += 1;
        let mut at = id as usize;
        for level in &mut self.levels {
            let was_empty = level[at / 64] == 0;
            level[at / 64] |= 1 << (at % 64);
            if !was_empty {
                break;
            }
            at /= 64;
        }
        true
    }

    /// Removes `id`; returns whether it was present.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        if !self.contains(id) {
            return false;
        }
        self.len -= 1;
        let mut at = id as usize;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
        true
    }

    /// The lowest member.
    pub(crate) fn first(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let lowest =
            self.levels.iter().rev().fold(0, |at, level| at * 64 + level[at].trailing_zeros() as usize);
        Some(lowest as u32)
    }
}

#[cfg(test)]
mod tests {
    use crate::shared::id_set::*;
    use kvasir_testkit::{Random, rounds};
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_an_ordered_set() {
        for bound in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let (mut set, mut model) = (IdSet::new(bound), BTreeSet::new());
            let mut random = Random::new(7);
            for _ in 0..rounds(5000) {
                let state = random.bits();
                let id = (state >> 33) as u32 % bound;
                match state >> 20 & 1 {
                    0 => assert_eq!(set.insert(id), model.insert(id)),
                    _ => assert_eq!(set.remove(id), model.remove(&id)),
                }
                assert_eq!(set.first(), model.first().copied());
                assert_eq!(set.len() as usize, model.len());
                assert_eq!(set.contains(id), model.contains(&id));
            }
        }
    }
}

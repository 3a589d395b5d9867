use crate::Slot;

const LEVELS: usize = 3;

/// The free cells of a pool, of which the lowest is handed out first.
///
/// Cells from the high water on are free and not noted; below it a bit says which are, with two levels of summary
/// above, so that finding the lowest does not depend on how many there are. When the top cells become free, the
/// high water falls.
#[derive(Clone, Debug)]
pub(crate) struct FreeCells {
    capacity: u32,
    high: u32,
    below: u32,
    levels: [Vec<u64>; LEVELS],
}

impl FreeCells {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { capacity, high: 0, below: 0, levels: Default::default() }
    }

    /// Number of free cells.
    pub(crate) fn count(&self) -> u32 {
        self.below + (self.capacity - self.high)
    }

    /// Every cell that is not free is below this.
    pub(crate) fn high_water(&self) -> u32 {
        self.high
    }

    /// Whether a cell is free.
    pub(crate) fn is_free(&self, cell: Slot) -> bool {
        cell >= self.high || self.levels[0][cell as usize / 64] >> (cell % 64) & 1 == 1
    }

    /// Hands out the lowest free cell.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        if self.below > 0 {
            let cell = self.lowest();
            self.clear_bit(cell);
            self.below -= 1;
            return Some(cell);
        }
        if self.high == self.capacity {
            return None;
        }
        let cell = self.high;
        self.high += 1;
        for (level, words) in self.levels.iter_mut().enumerate() {
            let word = cell as usize >> (6 * (level + 1));
            if word == words.len() {
                words.push(0);
            }
        }
        Some(cell)
    }

    /// Takes a cell back.
    pub(crate) fn give(&mut self, cell: Slot) {
        for (level, words) in self.levels.iter_mut().enumerate() {
            let bit = cell as usize >> (6 * level);
            words[bit / 64] |= 1 << (bit % 64);
        }
        self.below += 1;
        while self.high > 0 && self.is_free(self.high - 1) {
            self.high -= 1;
            self.below -= 1;
            self.clear_bit(self.high);
        }
    }

    /// Makes exactly the cells from `used` on free.
    pub(crate) fn reset(&mut self, used: u32) {
        self.levels.iter_mut().for_each(|words| words.fill(0));
        (self.high, self.below) = (used, 0);
    }

    fn lowest(&self) -> Slot {
        let top = &self.levels[LEVELS - 1];
        let mut bit = top.iter().position(|&word| word != 0).unwrap_or(0);
        for words in self.levels.iter().rev() {
            bit = bit * 64 + words[bit].trailing_zeros() as usize;
        }
        bit as Slot
    }

    fn clear_bit(&mut self, cell: Slot) {
        for (level, words) in self.levels.iter_mut().enumerate() {
            let bit = cell as usize >> (6 * level);
            words[bit / 64] &= !(1 << (bit % 64));
            if words[bit / 64] != 0 {
                break;
            }
        }
    }

    /// The walker.
    pub(crate) fn check(&self) -> Result<(), String> {
        let noted = (0..self.high).filter(|&cell| self.is_free(cell)).count() as u32;
        if noted != self.below {
            return Err(format!("{noted} free cells are noted, {} counted", self.below));
        }
        if self.high > 0 && self.is_free(self.high - 1) {
            return Err(format!("the high water {} has not fallen", self.high));
        }
        for level in 1..LEVELS {
            for (i, &word) in self.levels[level - 1].iter().enumerate() {
                if (self.levels[level][i / 64] >> (i % 64) & 1 == 1) != (word != 0) {
                    return Err(format!("summary {level} is wrong at word {i}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_lowest_comes_first_and_the_high_water_falls(
            capacity in 1u32..9000,
            ops in proptest::collection::vec((any::<bool>(), 1u32..600, any::<u32>()), 1..40),
        ) {
            let mut free = FreeCells::new(capacity);
            let mut used = BTreeSet::new();
            let mut unused: BTreeSet<u32> = (0..capacity).collect();
            for (take, n, seed) in ops {
                for i in 0..n {
                    if take {
                        let lowest = unused.pop_first();
                        prop_assert_eq!(free.take(), lowest);
                        used.extend(lowest);
                    } else if let Some(&cell) = used.range(seed.wrapping_add(i * 7919) % capacity..).next() {
                        used.remove(&cell);
                        unused.insert(cell);
                        free.give(cell);
                    }
                }
                prop_assert_eq!(free.check(), Ok(()));
                prop_assert_eq!(free.count() as usize, capacity as usize - used.len());
                prop_assert_eq!(free.high_water(), used.last().map_or(0, |cell| cell + 1));
            }
        }
    }
}

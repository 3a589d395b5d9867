//! `FreeCells`: a lowest-first free list with a high-water mark; cells above the mark are free
//! implicitly.

use crate::contract::ids::Slot;
use crate::shared::id_set::IdSet;

/// The free cells of a pool, allocated lowest first. Cells from the high-water mark on are free
/// implicitly; below it a bitmap says which are. The mark falls when the top cells become free.
#[derive(Clone, Debug)]
pub(crate) struct FreeCells {
    capacity: u32,
    high: u32,
    below: IdSet,
}

impl FreeCells {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { capacity, high: 0, below: IdSet::new(capacity) }
    }

    /// Number of free cells.
    pub(crate) fn count(&self) -> u32 {
        self.below.len() + (self.capacity - self.high)
    }

    /// High-water mark: every used cell is below it.
    pub(crate) fn high_water(&self) -> u32 {
        self.high
    }

    /// Whether a cell is free.
    pub(crate) fn is_free(&self, cell: Slot) -> bool {
        cell >= self.high || self.below.contains(cell)
    }

    /// Allocates the lowest free cell.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        if let Some(cell) = self.below.first() {
            self.below.remove(cell);
            return Some(cell);
        }
        let cell = self.high;
        (cell < self.capacity).then(|| {
            self.high += 1;
            cell
        })
    }

    /// Frees a cell.
    pub(crate) fn give(&mut self, cell: Slot) {
        self.below.insert(cell);
        while self.high > 0 && self.below.remove(self.high - 1) {
            self.high -= 1;
        }
    }

    /// Resets to exactly the cells from `used` on being free.
    pub(crate) fn reset(&mut self, used: u32) {
        *self = Self { high: used, ..Self::new(self.capacity) };
    }
}

#[cfg(test)]
mod tests {
    use crate::cells::free::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_lowest_free_cell_is_allocated_first(
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
                prop_assert_eq!(free.count() as usize, capacity as usize - used.len());
                prop_assert_eq!(free.high_water(), used.last().map_or(0, |cell| cell + 1));
            }
        }
    }
}

//! `Rings`: ring-buffer KV storage of sliding-window layers.
//!
//! Rows per layer = `window + longest_write - 1`; position `p` lies in row `p % rows`. A step
//! writes before it reads, so the first query of the longest write still finds the `window - 1`
//! positions before it. This module only counts; a backend computes ring rows from the plan's
//! positions. The unit tests replay every small history on real rows.

use crate::contract::error::CacheError;
use crate::contract::ids::{Position, Slot};

/// Ring buffers that sliding-window layers keep instead of a row per position, beside
/// full-attention layers under one cache. A layer with window `w` keeps `w + longest_write − 1`
/// rows; position `p` lies in row `p % rows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rings {
    windows: Vec<u32>,
    longest_write: u32,
}

impl Rings {
    /// Ring buffers for layers with these windows, in a session whose steps write at most
    /// `longest_write` tokens. Fails with `BadConfig` if there is no window, or one of the numbers
    /// is 0 or too large.
    pub fn new(windows: Vec<u32>, longest_write: u32) -> Result<Self, CacheError> {
        if windows.is_empty() {
            return Err(CacheError::BadConfig("no layer of the model has a window"));
        }
        if windows.contains(&0) {
            return Err(CacheError::BadConfig("a ring's window must be at least 1"));
        }
        if longest_write == 0 {
            return Err(CacheError::BadConfig("the longest write must be at least 1"));
        }
        if windows.iter().all(|window| window.checked_add(longest_write).is_some()) {
            Ok(Self { windows, longest_write })
        } else {
            Err(CacheError::BadConfig("a ring's window plus the longest write is too large"))
        }
    }

    /// Most tokens that one step may write.
    pub fn longest_write(&self) -> u32 {
        self.longest_write
    }

    /// Rows that a layer with `window` keeps.
    pub fn rows(&self, window: u32) -> u32 {
        window + self.longest_write - 1
    }

    /// Ring row of a position in a layer with `window`, which must be one of those given.
    pub fn slot(&self, window: u32, position: Position) -> Slot {
        position % self.rows(window)
    }

    /// The lowest position that every ring still holds after positions `0 .. written` were written.
    pub fn retained_from(&self, written: u32) -> Position {
        let lost = self.windows.iter().map(|&window| written.saturating_sub(self.rows(window)));
        lost.max().unwrap_or(0)
    }

    /// The lowest length from which decoding can continue: every ring still holds all that the next
    /// token sees.
    pub fn lowest_rewind(&self, written: u32) -> u32 {
        match self.retained_from(written) {
            0 => 0,
            // A window of w sees w − 1 rows back, and a ring holds w + longest_write − 1 of them.
            _ => written - self.longest_write,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::contract::rings::*;

    /// Runs every history of writes and rewinds of a small ring on real rows.
    #[test]
    fn the_lowest_rewind_still_finds_its_rows() {
        for (window, longest) in [(2, 1), (2, 3), (3, 1), (3, 2), (4, 4)] {
            let rings = Rings::new(vec![window], longest).unwrap();
            let rows = rings.rows(window);
            for written in 1..40u32 {
                let mut ring = vec![None; rows as usize];
                (0..written).for_each(|p| ring[rings.slot(window, p) as usize] = Some(p));
                let held = |p: u32| ring[rings.slot(window, p) as usize] == Some(p);
                let possible = |to: u32| (to.saturating_sub(window - 1)..to).all(held);
                let lowest = (0..=written).rev().take_while(|&to| possible(to)).last().unwrap();
                assert_eq!(
                    rings.lowest_rewind(written),
                    lowest,
                    "window {window}, longest {longest}, {written}"
                );
                assert!((rings.retained_from(written)..written).all(held));
            }
        }
    }

    #[test]
    fn the_smallest_ring_decides_what_is_retained() {
        let rings = Rings::new(vec![8, 4], 3).unwrap();
        assert_eq!((rings.rows(8), rings.rows(4)), (10, 6));
        assert_eq!((rings.retained_from(6), rings.lowest_rewind(6)), (0, 0));
        assert_eq!((rings.retained_from(7), rings.lowest_rewind(7)), (1, 4));
    }

    #[test]
    fn invalid_rings_are_refused() {
        assert!(Rings::new(vec![], 1).is_err());
        assert!(Rings::new(vec![0], 1).is_err());
        assert!(Rings::new(vec![1], 0).is_err());
        assert!(Rings::new(vec![u32::MAX], 1).is_err());
    }
}

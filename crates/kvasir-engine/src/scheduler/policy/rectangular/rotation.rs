//! Starvation-free rotation of decode rows: chooses which sequences decode when not all fit the
//! volume limit.

use crate::scheduler::policy::rectangular::rectangle::Rectangle;

/// A candidate row of a decode step, paused or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Index of the row; breaks ties.
    pub index: usize,
    /// Tokens with K/V.
    pub computed: u32,
    /// Tokens decoded so far.
    pub decoded: u32,
    /// Consecutive steps it was left out.
    pub starved: u32,
    /// Whether it decodes in this step. Set by [`select_rows`].
    pub selected: bool,
}

/// Chooses the rows that decode when not all fit the volume limit: longest starved first, then
/// fewest decoded tokens (most with `long_first`), then the lower index (`Candidate::index`). Rows are
/// selected greedily while the volume stays within `limit`.
///
/// `candidates` lists paused rows, then decoding rows, each in order; `Candidate::index` counts in that
/// order. Sorts the list by priority and returns the shape of the selected rows.
pub fn select_rows(candidates: &mut [Candidate], block: u32, limit: u64, long_first: bool) -> Rectangle {
    use std::cmp::Reverse;
    if long_first {
        candidates.sort_unstable_by_key(|t| (Reverse((t.starved, t.decoded)), t.index))
    } else {
        candidates.sort_unstable_by_key(|t| (Reverse(t.starved), t.decoded, t.index))
    }
    let mut shape = Rectangle::new(block);
    for candidate in candidates {
        let larger = shape.with(candidate.computed);
        candidate.selected = larger.volume() <= limit;
        candidate.starved = if candidate.selected { 0 } else { candidate.starved + 1 };
        shape = if candidate.selected { larger } else { shape };
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(index: usize, computed: u32, decoded: u32) -> Candidate {
        Candidate { index, computed, decoded, starved: 0, selected: false }
    }

    fn kept(candidates: &[Candidate]) -> Vec<usize> {
        candidates.iter().filter(|t| t.selected).map(|t| t.index).collect()
    }

    #[test]
    fn rotation_starves_no_row() {
        let mut candidates =
            [candidate(0, 90, 0), candidate(1, 61, 1), candidate(2, 52, 2), candidate(3, 33, 3)];
        let mut had = [0; 4];
        for _ in 0..40 {
            let shape = select_rows(&mut candidates, 64, 300, false);
            assert!(shape.volume() <= 300 && shape.rows() > 0);
            for t in candidates.iter_mut().filter(|t| t.selected) {
                had[t.index] += 1;
                t.decoded += 1;
                assert!(t.starved == 0);
            }
        }
        assert!(had.iter().all(|n| *n >= 10), "{had:?}");
    }

    #[test]
    fn rotation_ties_go_to_shortest_or_longest_output() {
        let mut candidates =
            [candidate(0, 90, 0), candidate(1, 61, 1), candidate(2, 52, 2), candidate(3, 33, 3)];
        assert_eq!(select_rows(&mut candidates, 64, 300, false).tkv(), 126);
        assert_eq!(kept(&candidates), [0, 1]);
        let mut candidates =
            [candidate(0, 90, 0), candidate(1, 61, 1), candidate(2, 52, 2), candidate(3, 33, 3)];
        select_rows(&mut candidates, 64, 300, true);
        assert_eq!(kept(&candidates), [3, 2, 1]);
        assert_eq!(candidates.iter().map(|t| t.starved).collect::<Vec<_>>(), [0, 0, 0, 1]);
    }

    #[test]
    fn equal_rows_keep_their_order() {
        for long_first in [false, true] {
            let mut candidates: Vec<_> = (0..5).map(|i| candidate(i, 10, 4)).collect();
            select_rows(&mut candidates, 64, 33, long_first);
            assert_eq!(candidates.iter().map(|t| t.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
            assert_eq!(kept(&candidates), [0, 1, 2]);
        }
    }
}

//! Starvation-free rotation of decode rows: chooses which sequences decode when not all fit the
//! volume limit.

use crate::scheduler::policy::rectangular::rectangle::Rectangle;

/// A candidate row of a decode step, paused or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Index of the row; breaks ties.
    pub who: usize,
    /// Tokens with K/V.
    pub computed: u32,
    /// Tokens decoded so far.
    pub decoded: u32,
    /// Consecutive steps it was left out.
    pub starved: u32,
    /// Whether it decodes in this step. Set by [`rotate`].
    pub keep: bool,
}

/// Chooses the rows that decode when not all fit the volume limit: longest starved first, then
/// fewest decoded tokens (most with `long_first`), then the lower index (`Turn::who`). Rows are
/// kept greedily while the volume stays within `limit`.
///
/// `turns` lists paused rows, then decoding rows, each in order; `Turn::who` is its index. It is
/// sorted by turn. Returns the shape of the kept rows.
pub fn rotate(turns: &mut [Turn], block: u32, limit: u64, long_first: bool) -> Rectangle {
    use std::cmp::Reverse;
    match long_first {
        true => turns.sort_unstable_by_key(|t| (Reverse((t.starved, t.decoded)), t.who)),
        false => turns.sort_unstable_by_key(|t| (Reverse(t.starved), t.decoded, t.who)),
    }
    let mut shape = Rectangle::new(block);
    for turn in turns {
        let larger = shape.with(turn.computed);
        turn.keep = larger.volume() <= limit;
        turn.starved = if turn.keep { 0 } else { turn.starved + 1 };
        shape = if turn.keep { larger } else { shape };
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(who: usize, computed: u32, decoded: u32) -> Turn {
        Turn { who, computed, decoded, starved: 0, keep: false }
    }

    fn kept(turns: &[Turn]) -> Vec<usize> {
        turns.iter().filter(|t| t.keep).map(|t| t.who).collect()
    }

    #[test]
    fn everybody_gets_a_turn() {
        let mut turns = [turn(0, 90, 0), turn(1, 61, 1), turn(2, 52, 2), turn(3, 33, 3)];
        let mut had = [0; 4];
        for _ in 0..40 {
            let shape = rotate(&mut turns, 64, 300, false);
            assert!(shape.volume() <= 300 && shape.rows() > 0);
            for t in turns.iter_mut().filter(|t| t.keep) {
                had[t.who] += 1;
                t.decoded += 1;
                assert!(t.starved == 0);
            }
        }
        assert!(had.iter().all(|n| *n >= 10), "{had:?}");
    }

    #[test]
    fn ties_go_to_the_shortest_or_the_longest_output() {
        let mut turns = [turn(0, 90, 0), turn(1, 61, 1), turn(2, 52, 2), turn(3, 33, 3)];
        assert_eq!(rotate(&mut turns, 64, 300, false).tkv(), 126);
        assert_eq!(kept(&turns), [0, 1]);
        let mut turns = [turn(0, 90, 0), turn(1, 61, 1), turn(2, 52, 2), turn(3, 33, 3)];
        rotate(&mut turns, 64, 300, true);
        assert_eq!(kept(&turns), [3, 2, 1]);
        assert_eq!(turns.iter().map(|t| t.starved).collect::<Vec<_>>(), [0, 0, 0, 1]);
    }

    #[test]
    fn equals_keep_their_order() {
        for long_first in [false, true] {
            let mut turns: Vec<_> = (0..5).map(|i| turn(i, 10, 4)).collect();
            rotate(&mut turns, 64, 33, long_first);
            assert_eq!(turns.iter().map(|t| t.who).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
            assert_eq!(kept(&turns), [0, 1, 2]);
        }
    }
}

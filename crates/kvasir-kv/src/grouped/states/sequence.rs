//! `StateSequence`: the live state, the checkpoints and the marks of one sequence, and at which
//! positions its steps store checkpoints.
//!
//! Positions are ends of blocks:
//!
//! 1. *marks*: where the caller expects other prompts or turns to begin;
//! 2. multiples of the interval;
//! 3. the *trail*: the last two ends of blocks, for a stop string that takes tokens back. A step of
//!    more than a block leaves none inside it, since decoding passes them one by one.
//!
//! Invariant: the list of checkpoints rises, and none is behind the live state.

use crate::contract::ids::{Position, Slot};
use crate::grouped::states::checkpoint::Checkpoint;

/// The newest state of a sequence, steps in flight included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) slot: Slot,
    /// Tokens that it covers.
    pub(crate) at: Position,
    /// Tokens behind it whose inputs are in the tail: drafts, until the next step replays those that
    /// were accepted.
    pub(crate) rows: u32,
    /// Whether it is a checkpoint, so that the next step writes another slot.
    pub(crate) is_sealed: bool,
}

/// Ends of blocks, and the distance of regular checkpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) block: u32,
    /// A multiple of `block`; 0: none.
    pub(crate) interval: u32,
}

impl Grid {
    /// The last end of a block up to `at`.
    pub(crate) fn floor(self, at: Position) -> Position {
        at / self.block * self.block
    }
}

/// The states of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateSequence {
    pub(crate) live: Option<Live>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Number of its seat.
    pub(crate) seat: Option<u32>,
    /// Ends of blocks, rising.
    marks: Vec<Position>,
    /// Positions of the trail, the newest first.
    trail: [Option<Position>; 2],
}

impl StateSequence {
    /// Tokens that its states cover, those in the tail included.
    pub(crate) fn end(&self) -> Position {
        self.live.map_or(0, |live| live.at + live.rows)
    }

    /// Adds marks behind the live state. Returns whether the live state itself was marked.
    pub(crate) fn mark(&mut self, at: &[Position], grid: Grid) -> bool {
        let reached = self.live.map_or(0, |live| live.at);
        for &at in at {
            let at = grid.floor(at);
            if at >= reached.max(1)
                && let Err(place) = self.marks.binary_search(&at)
            {
                self.marks.insert(place, at);
            }
        }
        self.marks.binary_search(&reached).is_ok()
    }

    /// Whether a checkpoint at `at` outlasts the trail.
    fn is_lasting(&self, at: Position, grid: Grid) -> bool {
        self.marks.binary_search(&at).is_ok() || grid.interval > 0 && at.is_multiple_of(grid.interval)
    }

    /// Appends where a step that computes the tokens `from .. to` stores checkpoints, the most useful
    /// first: marks, regular ones, and the next position of the trail, which is returned, too.
    pub(crate) fn wanted(
        &self,
        from: Position,
        to: Position,
        grid: Grid,
        wanted: &mut Vec<Position>,
    ) -> Option<Position> {
        let first = self.marks.partition_point(|&mark| mark <= from);
        wanted.extend(self.marks[first..].iter().take_while(|&&mark| mark <= to));
        if let Some(passed) = from.checked_div(grid.interval) {
            let regular = (passed + 1..).map_while(|n| n.checked_mul(grid.interval));
            wanted.extend(
                regular.take_while(|&at| at <= to).filter(|at| self.marks.binary_search(at).is_err()),
            );
        }
        let newest = grid.floor(to);
        let trail = (newest > from && (newest == to || to - from <= grid.block)).then_some(newest);
        wanted.extend(trail.filter(|&at| !self.is_lasting(at, grid)));
        trail
    }

    /// Moves the trail on to `at`. Returns the checkpoint that it leaves behind.
    pub(crate) fn follow(&mut self, at: Position, grid: Grid) -> Option<Checkpoint> {
        let left = self.trail[1].filter(|&left| !self.is_lasting(left, grid));
        self.trail = [Some(at), self.trail[0]];
        let place = self.checkpoints.binary_search_by_key(&left?, |checkpoint| checkpoint.at).ok()?;
        Some(self.checkpoints.remove(place))
    }

    /// Adds a checkpoint in order of position. Returns the one behind it.
    pub(crate) fn insert(&mut self, checkpoint: Checkpoint) -> Option<Checkpoint> {
        let place = self.checkpoints.partition_point(|other| other.at < checkpoint.at);
        self.checkpoints.insert(place, checkpoint);
        self.checkpoints.get(place + 1).copied()
    }

    /// The last checkpoint up to `to` that `is_current` accepts.
    pub(crate) fn last_checkpoint(
        &self,
        to: Position,
        is_current: impl Fn(&Checkpoint) -> bool,
    ) -> Option<Checkpoint> {
        let count = self.checkpoints.partition_point(|checkpoint| checkpoint.at <= to);
        self.checkpoints[..count].iter().rev().copied().find(|checkpoint| is_current(checkpoint))
    }

    /// Drops marks and positions of the trail behind `to`.
    pub(crate) fn forget_behind(&mut self, to: Position) {
        self.marks.truncate(self.marks.partition_point(|&mark| mark <= to));
        self.forget_trail_behind(to);
    }

    /// Drops positions of the trail behind `to`.
    pub(crate) fn forget_trail_behind(&mut self, to: Position) {
        self.trail = self.trail.map(|at| at.filter(|&at| at <= to));
        if self.trail[0].is_none() {
            self.trail = [self.trail[1], None];
        }
    }

    /// A sequence that continues from the last of these checkpoints. `source` is the sequence whose
    /// trail they may be on.
    pub(crate) fn from_checkpoints(checkpoints: Vec<Checkpoint>, source: Option<&Self>) -> Self {
        let live =
            checkpoints.last().map(|last| Live { slot: last.slot, at: last.at, rows: 0, is_sealed: true });
        let trail = source.map_or([None; 2], |source| source.trail);
        let mut sequence = Self { live, checkpoints, trail, ..Self::default() };
        sequence.forget_behind(sequence.end());
        sequence
    }
}

#[cfg(test)]
mod tests {
    use crate::grouped::states::sequence::*;

    const GRID: Grid = Grid { block: 4, interval: 16 };

    fn wanted(sequence: &StateSequence, from: Position, to: Position) -> (Vec<Position>, Option<Position>) {
        let mut wanted = Vec::new();
        let trail = sequence.wanted(from, to, GRID, &mut wanted);
        (wanted, trail)
    }

    #[test]
    fn marks_come_first_then_regular_positions_then_the_trail() {
        let mut sequence = StateSequence::default();
        sequence.mark(&[11, 35, 35, 2], GRID);
        assert_eq!(wanted(&sequence, 0, 40), (vec![8, 32, 16, 40], Some(40)));
        assert_eq!(wanted(&sequence, 0, 39), (vec![8, 32, 16], None), "a long step leaves no trail inside");
        assert_eq!(wanted(&sequence, 8, 11), (vec![], None));
        assert_eq!(wanted(&sequence, 10, 13), (vec![12], Some(12)));
        assert_eq!(wanted(&sequence, 13, 16), (vec![16], Some(16)));
    }

    #[test]
    fn the_trail_keeps_two_positions_and_those_that_last() {
        let mut sequence = StateSequence::default();
        let mut left = Vec::new();
        for at in (4..=28).step_by(4) {
            left.extend(sequence.follow(at, GRID).map(|checkpoint| checkpoint.at));
            sequence.insert(Checkpoint { at, slot: at, number: u64::from(at) });
        }
        assert_eq!(left, [4, 8, 12, 20]);
        let kept: Vec<Position> = sequence.checkpoints.iter().map(|checkpoint| checkpoint.at).collect();
        assert_eq!(kept, [16, 24, 28]);
        assert_eq!(sequence.last_checkpoint(25, |_| true).map(|checkpoint| checkpoint.at), Some(24));
    }
}

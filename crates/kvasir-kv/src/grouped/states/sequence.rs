//! `StateSequence`: the live state, the checkpoints and the marks of one sequence, and the
//! positions at which its steps store checkpoints.
//!
//! These positions are block boundaries:
//!
//! 1. *marks*: positions at which the caller expects a later prompt or turn to diverge;
//! 2. multiples of the interval;
//! 3. the last two boundaries that decoding has passed (*recent*), for a stop string that removes
//!    tokens. A step of more than a block stores a recent checkpoint only at its end.
//!
//! Invariant: checkpoints are sorted by position, and none is above the live state's.

use crate::contract::ids::{Position, Slot};
use crate::grouped::states::checkpoint::Checkpoint;

/// Minimum length of a list of checkpoints of which all stale references are dropped.
const MIN_DROP_LEN: usize = 8;

/// The newest state of a sequence, steps in flight included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveState {
    pub(crate) slot: Slot,
    /// Number of tokens that it covers.
    pub(crate) position: Position,
    /// Number of draft tokens after it whose inputs are in the tail. The next step replays those
    /// that a rewind has left.
    pub(crate) tail_len: u32,
    /// Whether it is also a checkpoint, so that the next step must write another slot.
    pub(crate) is_sealed: bool,
}

impl LiveState {
    /// The live state of a sequence that continues from a checkpoint.
    pub(crate) fn at_checkpoint(checkpoint: Checkpoint) -> Self {
        let Checkpoint { position, slot, .. } = checkpoint;
        Self { slot, position, tail_len: 0, is_sealed: true }
    }
}

/// Block size, and the distance of regular checkpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointSpacing {
    pub(crate) block_size: u32,
    /// A multiple of `block_size`; 0 for no regular checkpoints.
    pub(crate) interval: u32,
}

impl CheckpointSpacing {
    /// The last block boundary at or before `position`.
    pub(crate) fn floor(self, position: Position) -> Position {
        position / self.block_size * self.block_size
    }

    /// Whether a block ends at `position`.
    pub(crate) fn is_boundary(self, position: Position) -> bool {
        position.is_multiple_of(self.block_size)
    }
}

/// The states of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateSequence {
    pub(crate) live: Option<LiveState>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Number of its tail in the `TailPool`, if it has one.
    pub(crate) tail: Option<u32>,
    /// Block boundaries, sorted.
    marks: Vec<Position>,
    /// Length of `checkpoints` at which all stale references are dropped from it.
    drop_stale_at: usize,
    /// Position up to which all checkpoints were linked to anchors.
    linked_to: Position,
    /// The last two block boundaries that decoding has passed, the newest first.
    recent: [Option<Position>; 2],
}

impl StateSequence {
    /// Number of tokens that the live state and the tail cover.
    pub(crate) fn covered_len(&self) -> Position {
        self.live.map_or(0, |live| live.position + live.tail_len)
    }

    /// Adds marks at or after the live state's position, rounded down to block boundaries. Returns
    /// whether the live state itself is marked.
    pub(crate) fn mark(&mut self, positions: &[Position], spacing: CheckpointSpacing) -> bool {
        let reached = self.live.map_or(0, |live| live.position);
        for &position in positions {
            let mark = spacing.floor(position);
            if mark >= reached.max(1)
                && let Err(index) = self.marks.binary_search(&mark)
            {
                self.marks.insert(index, mark);
            }
        }
        self.marks.binary_search(&reached).is_ok()
    }

    /// Whether a checkpoint is stored at `position` for a mark or the interval.
    fn is_marked_or_regular(&self, position: Position, spacing: CheckpointSpacing) -> bool {
        self.marks.binary_search(&position).is_ok()
            || spacing.interval > 0 && position.is_multiple_of(spacing.interval)
    }

    /// Appends the positions at which a step over the tokens `from .. to` stores checkpoints, the
    /// most useful first: marks, regular ones, and the new recent boundary. Returns the latter.
    pub(crate) fn checkpoint_positions(
        &self,
        from: Position,
        to: Position,
        spacing: CheckpointSpacing,
        positions: &mut Vec<Position>,
    ) -> Option<Position> {
        let first = self.marks.partition_point(|&mark| mark <= from);
        positions.extend(self.marks[first..].iter().take_while(|&&mark| mark <= to));
        if let Some(passed) = from.checked_div(spacing.interval) {
            let regular = (passed + 1..).map_while(|n| n.checked_mul(spacing.interval));
            let regular = regular.take_while(|&position| position <= to);
            positions.extend(regular.filter(|position| self.marks.binary_search(position).is_err()));
        }
        let newest = spacing.floor(to);
        let recent = (newest > from && (newest == to || to - from <= spacing.block_size)).then_some(newest);
        positions.extend(recent.filter(|&position| !self.is_marked_or_regular(position, spacing)));
        recent
    }

    /// Adds a recent boundary, which displaces the older one. Removes and returns the displaced
    /// boundary's checkpoint unless it is marked or regular.
    pub(crate) fn push_recent(
        &mut self,
        boundary: Position,
        spacing: CheckpointSpacing,
    ) -> Option<Checkpoint> {
        let displaced = self.recent[1].filter(|&old| !self.is_marked_or_regular(old, spacing));
        self.recent = [Some(boundary), self.recent[0]];
        let displaced = displaced?;
        let index = self.checkpoints.binary_search_by_key(&displaced, |checkpoint| checkpoint.position);
        Some(self.checkpoints.remove(index.ok()?))
    }

    /// Drops stale references to checkpoints: those at the end, and all if the list has doubled
    /// since the last time. So a search for the last checkpoint takes amortized constant time.
    pub(crate) fn drop_stale(&mut self, is_current: impl Fn(&Checkpoint) -> bool) {
        if self.checkpoints.len() >= self.drop_stale_at {
            self.checkpoints.retain(&is_current);
            self.drop_stale_at = (2 * self.checkpoints.len()).max(MIN_DROP_LEN);
        }
        while self.checkpoints.pop_if(|last| !is_current(last)).is_some() {}
    }

    /// Adds a checkpoint in order of position. Returns those after it.
    pub(crate) fn insert(&mut self, checkpoint: Checkpoint) -> &[Checkpoint] {
        let index = self.checkpoints.partition_point(|other| other.position < checkpoint.position);
        self.checkpoints.insert(index, checkpoint);
        self.linked_to = self.linked_to.min(checkpoint.position.saturating_sub(1));
        &self.checkpoints[index + 1..]
    }

    /// The last checkpoint at or before `to` that `is_current` accepts.
    pub(crate) fn last_checkpoint(
        &self,
        to: Position,
        is_current: impl Fn(&Checkpoint) -> bool,
    ) -> Option<Checkpoint> {
        let count = self.checkpoints.partition_point(|checkpoint| checkpoint.position <= to);
        self.checkpoints[..count].iter().rev().copied().find(|checkpoint| is_current(checkpoint))
    }

    /// The checkpoints that were not linked to anchors yet, and the position up to which all were.
    pub(crate) fn unlinked(&mut self) -> (&mut [Checkpoint], &mut Position) {
        let first = self.checkpoints.partition_point(|checkpoint| checkpoint.position <= self.linked_to);
        (&mut self.checkpoints[first..], &mut self.linked_to)
    }

    /// Records that no checkpoint is linked to an anchor.
    pub(crate) fn forget_links(&mut self) {
        self.linked_to = 0;
    }

    /// Drops marks and recent boundaries above `to`.
    pub(crate) fn truncate_positions(&mut self, to: Position) {
        self.marks.truncate(self.marks.partition_point(|&mark| mark <= to));
        self.linked_to = self.linked_to.min(to);
        self.truncate_recent(to);
    }

    /// Drops recent boundaries above `to`.
    pub(crate) fn truncate_recent(&mut self, to: Position) {
        self.recent = self.recent.map(|boundary| boundary.filter(|&boundary| boundary <= to));
        if self.recent[0].is_none() {
            self.recent = [self.recent[1], None];
        }
    }

    /// A sequence that continues from the last of these checkpoints. `source` is the sequence that
    /// it is forked from, whose recent boundaries it takes over.
    pub(crate) fn from_checkpoints(checkpoints: Vec<Checkpoint>, source: Option<&Self>) -> Self {
        let live = checkpoints.last().copied().map(LiveState::at_checkpoint);
        let recent = source.map_or([None; 2], |source| source.recent);
        let mut sequence = Self { live, checkpoints, recent, ..Self::default() };
        sequence.truncate_positions(sequence.covered_len());
        sequence
    }
}

#[cfg(test)]
mod tests {
    use crate::grouped::states::sequence::*;

    const SPACING: CheckpointSpacing = CheckpointSpacing { block_size: 4, interval: 16 };

    /// The positions of the checkpoints of a step, and its recent boundary.
    fn positions(
        sequence: &StateSequence,
        from: Position,
        to: Position,
    ) -> (Vec<Position>, Option<Position>) {
        let mut positions = Vec::new();
        let recent = sequence.checkpoint_positions(from, to, SPACING, &mut positions);
        (positions, recent)
    }

    #[test]
    fn marks_precede_regular_and_recent_checkpoints() {
        let mut sequence = StateSequence::default();
        sequence.mark(&[11, 35, 35, 2], SPACING);
        assert_eq!(positions(&sequence, 0, 40), (vec![8, 32, 16, 40], Some(40)));
        assert_eq!(
            positions(&sequence, 0, 39),
            (vec![8, 32, 16], None),
            "no recent boundary inside a long step"
        );
        assert_eq!(positions(&sequence, 8, 11), (vec![], None));
        assert_eq!(positions(&sequence, 10, 13), (vec![12], Some(12)));
        assert_eq!(positions(&sequence, 13, 16), (vec![16], Some(16)));
    }

    #[test]
    fn only_two_recent_checkpoints_are_kept_between_regular_ones() {
        let mut sequence = StateSequence::default();
        let mut removed = Vec::new();
        for position in (4..=28).step_by(4) {
            removed.extend(sequence.push_recent(position, SPACING).map(|checkpoint| checkpoint.position));
            sequence.insert(Checkpoint { position, slot: position, number: u64::from(position) });
        }
        assert_eq!(removed, [4, 8, 12, 20]);
        let kept: Vec<Position> = sequence.checkpoints.iter().map(|checkpoint| checkpoint.position).collect();
        assert_eq!(kept, [16, 24, 28]);
        assert_eq!(sequence.last_checkpoint(25, |_| true).map(|checkpoint| checkpoint.position), Some(24));
    }
}

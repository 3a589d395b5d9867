//! [`Acceptance`]: learns from verified drafts how likely evidence of each class and strength is to
//! be accepted.
//!
//! A cell per class and tenth of the drafter's own estimate holds decayed counts. Without counts the
//! drafter's estimate stands.

use crate::request::proposal::Evidence;

/// Cells per class.
const SHARES: usize = 10;
/// Observations that the drafter's own estimate counts as.
const PRIOR: f32 = 4.0;
/// What remains of a cell's counts at each observation: it remembers about 200.
const DECAY: f32 = 0.995;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    tested: f32,
    accepted: f32,
}

/// Acceptance by class and strength of evidence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    cells: [[Cell; SHARES]; Evidence::CLASSES],
}

impl Acceptance {
    fn place(evidence: Evidence) -> (usize, usize) {
        let share = (evidence.share * SHARES as f32) as usize;
        (usize::from(evidence.class).min(Evidence::CLASSES - 1), share.min(SHARES - 1))
    }

    /// Probability that a draft is accepted if its parent is.
    pub(crate) fn estimate(&self, evidence: Evidence) -> f32 {
        let (class, share) = Self::place(evidence);
        let cell = &self.cells[class][share];
        (cell.accepted + PRIOR * evidence.share.clamp(0.0, 1.0)) / (cell.tested + PRIOR)
    }

    /// Counts a draft whose parent was accepted.
    pub(crate) fn observe(&mut self, evidence: Evidence, accepted: bool) {
        let (class, share) = Self::place(evidence);
        let cell = &mut self.cells[class][share];
        cell.tested = cell.tested * DECAY + 1.0;
        cell.accepted = cell.accepted * DECAY + f32::from(u8::from(accepted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_move_from_the_drafter_to_what_was_seen() {
        let mut acceptance = Acceptance::default();
        let (sure, other) = (Evidence::of_match(3, 0.95), Evidence::of_match(40, 0.95));
        assert!((acceptance.estimate(sure) - 0.95).abs() < 1e-6);
        for i in 0..400 {
            acceptance.observe(sure, i % 5 == 0);
        }
        assert!((acceptance.estimate(sure) - 0.2).abs() < 0.05, "{}", acceptance.estimate(sure));
        assert!((acceptance.estimate(other) - 0.95).abs() < 1e-6, "classes are apart");
        for _ in 0..600 {
            acceptance.observe(sure, true);
        }
        assert!(acceptance.estimate(sure) > 0.9, "it follows a change");
    }
}

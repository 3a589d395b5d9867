//! [`DraftStats`]: acceptance statistics by draft position.

use serde::{Deserialize, Serialize};

/// Draft acceptance statistics by draft position (depth).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftStats {
    /// Number of verifications: decode rows with drafts.
    pub verified: u64,
    /// Drafts verified, all nodes of trees included.
    pub tokens: u64,
    /// Verifications that had a draft at each depth.
    pub drafted: Vec<u64>,
    /// Drafts accepted at each depth.
    pub accepted: Vec<u64>,
}

impl DraftStats {
    /// Counts one verification of `drafts` drafts up to `depth`, of which `accepted` were accepted.
    pub fn count(&mut self, drafts: usize, depth: usize, accepted: usize) {
        self.verified += 1;
        self.tokens += drafts as u64;
        if self.drafted.len() < depth {
            self.drafted.resize(depth, 0);
            self.accepted.resize(depth, 0);
        }
        self.drafted.iter_mut().take(depth).for_each(|n| *n += 1);
        self.accepted.iter_mut().take(accepted).for_each(|n| *n += 1);
    }

    /// The counts since `before`, an earlier state of them.
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: &[u64], then: &[u64]| {
            now.iter().zip(then.iter().chain(std::iter::repeat(&0))).map(|(now, then)| now - then).collect()
        };
        Self {
            verified: self.verified - before.verified,
            tokens: self.tokens - before.tokens,
            drafted: less(&self.drafted, &before.drafted),
            accepted: less(&self.accepted, &before.accepted),
        }
    }

    /// Acceptance rate; 0 without drafts.
    pub fn rate(&self) -> f64 {
        match self.totals() {
            (_, 0) => 0.0,
            (accepted, drafted) => accepted as f64 / drafted as f64,
        }
    }

    /// Accepted and proposed drafts, summed over all depths.
    pub fn totals(&self) -> (u64, u64) {
        (self.accepted.iter().sum(), self.drafted.iter().sum())
    }
}

impl std::ops::AddAssign<&Self> for DraftStats {
    fn add_assign(&mut self, other: &Self) {
        self.verified += other.verified;
        self.tokens += other.tokens;
        let add = |to: &mut Vec<u64>, more: &[u64]| {
            to.resize(to.len().max(more.len()), 0);
            to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
        };
        add(&mut self.drafted, &other.drafted);
        add(&mut self.accepted, &other.accepted);
    }
}

/// Depth of a draft tree.
pub(crate) fn depth(parents: &[i32]) -> usize {
    let mut deepest = 0;
    for node in 1..=parents.len() {
        let (mut at, mut depth) = (node, 0);
        while let Some(parent) = at.checked_sub(1).and_then(|i| parents.get(i)) {
            at = (*parent).max(0) as usize;
            depth += 1;
        }
        deepest = deepest.max(depth);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_is_counted_by_distance() {
        let mut stats = DraftStats::default();
        for (depth, accepted) in [(3, 3), (3, 1), (2, 0), (3, 2)] {
            stats.count(depth, depth, accepted);
        }
        assert_eq!((&stats.drafted[..], &stats.accepted[..]), (&[4, 4, 3][..], &[3, 2, 1][..]));
        assert_eq!((stats.verified, stats.tokens, stats.totals()), (4, 11, (6, 11)));
        assert!((stats.rate() - 6.0 / 11.0).abs() < 1e-12);
        let mut sum = DraftStats::default();
        sum.count(1, 1, 1);
        let before = sum.clone();
        sum += &stats;
        assert_eq!((sum.since(&before), sum.verified), (stats, 5));
    }

    #[test]
    fn tree_depth_is_that_of_its_deepest_node() {
        assert_eq!(depth(&[]), 0);
        assert_eq!(depth(&[0, 0, 0]), 1);
        assert_eq!(depth(&[0, 1, 0, 2, 3]), 3);
    }
}

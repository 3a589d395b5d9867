//! [`Proposal`]: draft tokens for one sequence, as a chain or a tree, with the evidence for each.

use kvasir_exec::DraftCandidate;
use kvasir_kv::Token;

/// Why a draft may be accepted, if the one before it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// What kind of evidence, below [`Evidence::CLASSES`]: the length of a match, or the depth in a
    /// draft model's tree. Acceptance is learned for each class by itself.
    pub class: u8,
    /// The drafter's own estimate of the probability.
    pub share: f32,
}

impl Evidence {
    /// Number of classes.
    pub const CLASSES: usize = 8;

    /// Evidence of a draft after a context of `len` tokens that occurred before: classes by powers
    /// of two.
    pub fn of_match(len: u32, share: f32) -> Self {
        Self { class: (32 - len.leading_zeros()).min(Self::CLASSES as u32 - 1) as u8, share }
    }

    /// Evidence of a draft model at a depth, from 1.
    pub fn of_model(depth: u32, share: f32) -> Self {
        Self { class: depth.min(Self::CLASSES as u32 - 1) as u8, share }
    }
}

/// Draft tokens for one sequence, as a chain or a tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The tokens; a parent precedes its children.
    pub tokens: Vec<Token>,
    /// Tree parents, empty for a chain: node 0 is the newest committed token, node `i + 1` is
    /// `tokens[i]`.
    pub parents: Vec<i32>,
    /// Evidence for each token; tokens beyond its end have none.
    pub evidence: Vec<Evidence>,
}

impl Proposal {
    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.evidence.clear();
    }

    /// Takes those candidates of a draft model that are kept.
    pub(crate) fn take_kept(&mut self, candidates: &[DraftCandidate], numbers: &mut Vec<i32>) {
        self.clear();
        numbers.clear();
        for candidate in candidates {
            let parent = usize::try_from(candidate.parent).map_or(0, |parent| numbers[parent]);
            if candidate.kept {
                self.tokens.push(candidate.token);
                self.parents.push(parent);
                self.evidence.push(Evidence::of_model(candidate.level, candidate.log_probability.exp()));
            }
            numbers.push(self.tokens.len() as i32);
        }
        // A chain needs no tree in the cache.
        if self.parents.iter().zip(0..).all(|(parent, own)| *parent == own) {
            self.parents.clear();
        }
    }

    /// Whether every parent precedes its child, or there are none.
    pub(crate) fn is_sound(&self) -> bool {
        let sane = self.parents.iter().zip(1i32..).all(|(parent, node)| (0..node).contains(parent));
        sane && (self.parents.is_empty() || self.parents.len() == self.tokens.len())
    }

    /// The node that draft `i` continues: 0 is the newest committed token, `i + 1` is draft `i`.
    pub(crate) fn parent(&self, i: usize) -> usize {
        self.parents.get(i).map_or(i, |parent| *parent as usize)
    }

    /// Keeps the first `count` drafts.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.tokens.truncate(count);
        self.parents.truncate(count);
        self.evidence.truncate(count);
    }

    /// Keeps the drafts that `keeps` names, in order. A kept draft's parent must be kept.
    pub(crate) fn retain(&mut self, keeps: impl Fn(usize) -> bool, numbers: &mut Vec<i32>) {
        numbers.clear();
        numbers.push(0);
        let mut kept = 0;
        for i in 0..self.tokens.len() {
            if !keeps(i) {
                numbers.push(0);
                continue;
            }
            self.tokens[kept] = self.tokens[i];
            if let Some(parent) = self.parents.get(i).map(|parent| numbers[*parent as usize]) {
                self.parents[kept] = parent;
            }
            if let Some(evidence) = self.evidence.get(i).copied() {
                self.evidence[kept] = evidence;
            }
            kept += 1;
            numbers.push(kept as i32);
        }
        self.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retained_drafts_keep_their_parents() {
        let evidence = (1..=5).map(|i| Evidence::of_model(i, 0.1 * i as f32)).collect();
        let mut tree = Proposal { tokens: vec![5, 6, 7, 8, 9], parents: vec![0, 0, 1, 2, 4], evidence };
        assert!(tree.is_sound());
        tree.retain(|i| [1, 3, 4].contains(&i), &mut Vec::new());
        assert_eq!((tree.tokens, tree.parents), (vec![6, 8, 9], vec![0, 1, 2]));
        let mut chain = Proposal { tokens: vec![1, 2, 3], ..Proposal::default() };
        chain.retain(|i| i < 2, &mut Vec::new());
        assert_eq!((chain.tokens, chain.parents.len()), (vec![1, 2], 0));
    }

    #[test]
    fn longer_matches_are_of_other_classes() {
        let class = |len| Evidence::of_match(len, 0.5).class;
        assert_eq!([0, 1, 2, 3, 4, 8, 64, 5000].map(class), [0, 1, 2, 2, 3, 4, 7, 7]);
        assert_eq!(Evidence::of_model(40, 0.5).class, 7);
    }
}

//! `allowed_token_ids` and `bad_words` as a constraint: a fixed set of ids, without those that would
//! complete a forbidden sequence.
//!
//! Wraps an inner constraint (a grammar), whose masks it narrows. The state is a function of the
//! output alone, so rejected drafts need no rollback.

use kvasir_kv::Token;
use kvasir_sample::{Allowed, Constrained, Constraint, Follower};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Ids that may be sampled, and sequences of ids that may not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRules {
    /// The only ids allowed; empty allows all.
    pub allowed: Vec<Token>,
    /// Sequences of ids that are never completed. None is empty.
    pub forbidden: Vec<Vec<Token>>,
    /// Vocabulary size.
    pub vocab: u32,
}

impl TokenRules {
    /// Wraps `inner` in a constraint that enforces the rules; without rules, returns it as it is.
    pub fn within(self, inner: Constrained) -> Constrained {
        if self.allowed.is_empty() && self.forbidden.is_empty() {
            return inner;
        }
        let mut base = vec![0u32; self.vocab.div_ceil(32) as usize];
        if self.allowed.is_empty() {
            base.fill(u32::MAX);
            if let Some(last) = base.last_mut().filter(|_| !self.vocab.is_multiple_of(32)) {
                *last = (1 << (self.vocab % 32)) - 1;
            }
        }
        self.allowed.iter().for_each(|id| base[*id as usize / 32] |= 1 << (id % 32));
        Constrained(Some(Arc::new(RulesConstraint {
            forbidden: self.forbidden.into(),
            base: base.into(),
            inner,
        })))
    }
}

#[derive(Debug)]
struct RulesConstraint {
    forbidden: Arc<[Vec<Token>]>,
    /// Mask of the ids that may be sampled at all.
    base: Arc<[u32]>,
    inner: Constrained,
}

impl Constraint for RulesConstraint {
    fn follow(&self) -> Box<dyn Follower> {
        Box::new(RulesFollower {
            forbidden: self.forbidden.clone(),
            base: self.base.clone(),
            inner: self.inner.0.as_ref().map(|inner| inner.follow()),
            mask: Vec::new(),
        })
    }
}

#[derive(Debug)]
struct RulesFollower {
    forbidden: Arc<[Vec<Token>]>,
    base: Arc<[u32]>,
    inner: Option<Box<dyn Follower>>,
    mask: Vec<u32>,
}

impl Follower for RulesFollower {
    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        self.mask.clear();
        self.mask.extend_from_slice(&self.base);
        match self.inner.as_mut().map(|inner| inner.allowed(output)) {
            Some(Allowed::Nothing) => return Allowed::Nothing,
            Some(Allowed::Only(inner)) => {
                self.mask.truncate(inner.len());
                self.mask.iter_mut().zip(inner).for_each(|(word, inner)| *word &= inner);
            }
            None | Some(Allowed::Any) => {}
        }
        for sequence in self.forbidden.iter() {
            if let Some((last, before)) = sequence.split_last()
                && output.ends_with(before)
                && let Some(word) = self.mask.get_mut(*last as usize / 32)
            {
                *word &= !(1 << (last % 32));
            }
        }
        if self.mask.iter().all(|word| *word == 0) { Allowed::Nothing } else { Allowed::Only(&self.mask) }
    }

    fn expect(&mut self, output: &[Token]) {
        if let Some(inner) = &mut self.inner {
            inner.expect(output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(rules: TokenRules, output: &[Token]) -> Vec<Token> {
        let mut follower = rules.within(Constrained::default()).0.unwrap().follow();
        match follower.allowed(output) {
            Allowed::Only(mask) => {
                (0..70).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_allowed_ids_remain() {
        let rules = TokenRules { allowed: vec![3, 33, 69], vocab: 70, ..TokenRules::default() };
        assert_eq!(ids(rules, &[]), [3, 33, 69]);
    }

    #[test]
    fn forbidden_sequences_are_never_completed() {
        let rules = TokenRules { forbidden: vec![vec![5], vec![7, 8]], vocab: 70, ..TokenRules::default() };
        let all = |without: &[Token]| (0..70).filter(|id| !without.contains(id)).collect::<Vec<_>>();
        assert_eq!(ids(rules.clone(), &[]), all(&[5]));
        assert_eq!(ids(rules.clone(), &[1, 7]), all(&[5, 8]));
        assert_eq!(ids(rules, &[7, 1]), all(&[5]));
    }

    #[test]
    fn nothing_left_is_reported() {
        let rules = TokenRules { allowed: vec![5], forbidden: vec![vec![5]], vocab: 70 };
        let mut follower = rules.within(Constrained::default()).0.unwrap().follow();
        assert_eq!(follower.allowed(&[]), Allowed::Nothing);
    }
}

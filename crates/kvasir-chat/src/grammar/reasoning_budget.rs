//! Reasoning budget as a constraint: after a number of reasoning tokens, only the end-of-reasoning
//! token is allowed.
//!
//! Wraps an inner constraint (a grammar), which is masked as usual while the budget is not spent.
//! The state is a function of the output alone, so rejected drafts need no rollback.

use kvasir_kv::Token;
use kvasir_sample::{Allowed, Constrained, Constraint, Follower};
use std::sync::Arc;

/// Limits reasoning to `tokens` tokens: once they are spent, the mask allows only the end marker.
#[derive(Clone, Debug)]
pub struct ReasoningBudget {
    /// Maximum number of reasoning tokens.
    pub tokens: usize,
    /// Token that starts the reasoning block.
    pub open: Token,
    /// Token that ends the reasoning block.
    pub close: Token,
    /// Whether the prompt ends inside the reasoning block.
    pub is_begun: bool,
    /// Vocabulary size.
    pub vocab: u32,
}

impl ReasoningBudget {
    /// Wraps `inner`, if it holds a constraint, in a constraint that enforces the budget.
    pub fn within(self, inner: Constrained) -> Constrained {
        let words = self.vocab.div_ceil(32) as usize;
        let mut closing = vec![0; words];
        if let Some(word) = closing.get_mut(self.close as usize / 32) {
            *word = 1 << (self.close % 32);
        }
        Constrained(Some(Arc::new(BudgetConstraint { budget: self, inner, closing: closing.into() })))
    }

    /// Whether the block is open and its budget spent.
    fn is_spent(&self, output: &[Token]) -> bool {
        let begin = if self.is_begun {
            Some(0)
        } else {
            output.iter().position(|token| *token == self.open).map(|at| at + 1)
        };
        let thought = begin.and_then(|begin| output.get(begin..)).unwrap_or(&[]);
        begin.is_some() && thought.len() >= self.tokens && !thought.contains(&self.close)
    }
}

#[derive(Debug)]
struct BudgetConstraint {
    budget: ReasoningBudget,
    inner: Constrained,
    /// Token mask that allows only the end marker.
    closing: Arc<[u32]>,
}

impl Constraint for BudgetConstraint {
    fn follow(&self) -> Box<dyn Follower> {
        Box::new(BudgetFollower {
            budget: self.budget.clone(),
            inner: self.inner.0.as_ref().map(|inner| inner.follow()),
            closing: self.closing.clone(),
        })
    }
}

#[derive(Debug)]
struct BudgetFollower {
    budget: ReasoningBudget,
    inner: Option<Box<dyn Follower>>,
    closing: Arc<[u32]>,
}

impl Follower for BudgetFollower {
    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        match &mut self.inner {
            _ if self.budget.is_spent(output) => Allowed::Only(&self.closing),
            Some(inner) => inner.allowed(output),
            None => Allowed::Any,
        }
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

    const OPEN: Token = 40;
    const CLOSE: Token = 41;

    fn follower(tokens: usize, is_begun: bool) -> Box<dyn Follower> {
        let budget = ReasoningBudget { tokens, open: OPEN, close: CLOSE, is_begun, vocab: 50 };
        budget.within(Constrained::default()).0.unwrap().follow()
    }

    /// Whether only the end marker is allowed; otherwise the mask must be absent.
    fn must_close(follower: &mut Box<dyn Follower>, output: &[Token]) -> bool {
        let Allowed::Only(mask) = follower.allowed(output) else { return false };
        let may = |id: Token| mask[id as usize / 32] >> (id % 32) & 1 == 1;
        assert_eq!((0..50).filter(|id| may(*id)).collect::<Vec<_>>(), [CLOSE]);
        true
    }

    #[test]
    fn spent_reasoning_budget_forces_the_end_marker() {
        let mut begun = follower(2, true);
        for (output, want) in [
            (&[][..], false),
            (&[1], false),
            (&[1, 2], true),
            (&[1, CLOSE], false),
            (&[1, 2, CLOSE], false),
            (&[1, 2, CLOSE, 3, 4, 5], false),
            // A shorter output again, as after a rejected draft.
            (&[1], false),
        ] {
            assert_eq!(must_close(&mut begun, output), want, "{output:?}");
        }
        let mut own = follower(2, false);
        for (output, want) in [
            (&[1, 2, 3][..], false),
            (&[OPEN, 1], false),
            (&[OPEN, 1, 2], true),
            (&[1, OPEN, 1, 2], true),
            (&[OPEN, 1, 2, CLOSE, 3], false),
        ] {
            assert_eq!(must_close(&mut own, output), want, "{output:?}");
        }
        assert!(must_close(&mut follower(0, true), &[]));
    }
}

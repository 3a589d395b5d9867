//! `PendingClaims`: the claims in flight of one sequence, the newest two stored inline.
//!
//! An overlapped loop has at most two steps in flight, so a decode step touches no heap memory
//! here. Retired claims are not removed eagerly: readers pass the newest retired step and skip
//! everything up to it. The test compares it with a `VecDeque`.

use crate::contract::ids::StepId;
use crate::shared::lazy_vec::LazyVec;

/// One claim in flight of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) step: StepId,
    /// Rows of the sequence that the step writes, draft nodes counted behind the last position. A
    /// truncation shortens them.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Whether they are draft nodes.
    pub(crate) is_tree: bool,
}

impl Pending {
    pub(crate) fn tokens(&self) -> u32 {
        self.end - self.start
    }
}

/// The claims in flight of one sequence, oldest first, the newest two inline. Retired claims are
/// removed lazily: readers name the newest retired step and skip all claims up to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingClaims {
    inline: [Option<Pending>; 2],
    /// Index in `inline` of the newest; the other is the one before it.
    newest: bool,
    /// Older ones, rare: more than two steps in flight.
    older: LazyVec<Pending>,
}

impl PendingClaims {
    pub(crate) fn clear(&mut self) {
        self.inline = [None; 2];
        self.older.take();
    }

    #[inline]
    pub(crate) fn push(&mut self, claim: Pending, retired: Option<StepId>) {
        self.newest = !self.newest;
        let place = usize::from(self.newest);
        if self.inline[place].is_some_and(|old| Some(old.step) > retired) {
            self.make_older(place, retired);
        }
        self.inline[place] = Some(claim);
    }

    /// Moves the inline claim at `place` to the heap list, which drops its retired claims.
    #[cold]
    fn make_older(&mut self, place: usize, retired: Option<StepId>) {
        let older = self.older.make();
        older.retain(|claim| Some(claim.step) > retired);
        older.extend(self.inline[place]);
    }

    /// Removes the newest claim if it belongs to `step`.
    pub(crate) fn take_newest(&mut self, step: StepId) -> Option<Pending> {
        let place = &mut self.inline[usize::from(self.newest)];
        let newest = place.take_if(|claim| claim.step == step)?;
        // The claim before it becomes the newest.
        *place = self.older.edit(Vec::pop).flatten();
        self.newest = !self.newest;
        Some(newest)
    }

    /// The claim of `step`.
    #[inline]
    pub(crate) fn of(&self, step: StepId) -> Option<&Pending> {
        // Few steps are in flight, and the newest is looked up most often.
        match &self.inline[usize::from(self.newest)] {
            Some(newest) if newest.step == step => Some(newest),
            _ => self.all().find(|claim| claim.step == step),
        }
    }

    /// The claims of steps after `retired`, oldest first.
    pub(crate) fn since(&self, retired: Option<StepId>) -> impl DoubleEndedIterator<Item = &Pending> {
        self.all().filter(move |claim| Some(claim.step) > retired)
    }

    /// All recorded claims, retired ones included, in no order, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.older.iter_mut().chain(self.inline.iter_mut().flatten())
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = &Pending> {
        let [newest, other] = [self.newest, !self.newest].map(|which| &self.inline[usize::from(which)]);
        self.older.iter().chain([other, newest].into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::pending::*;
    use kvasir_testkit::{Random, rounds};
    use std::collections::VecDeque;

    #[test]
    fn agrees_with_a_queue() {
        let (mut claims, mut model) = (PendingClaims::default(), VecDeque::<Pending>::new());
        let mut random = Random::new(5);
        let mut retired = None;
        for step in 0..rounds(4000) {
            let state = random.bits();
            let claim = Pending { step: StepId(step), ..Pending::default() };
            let named = StepId(step.saturating_sub(state >> 60));
            match state >> 40 & 3 {
                0 | 1 if model.len() < 6 => {
                    claims.push(claim, retired);
                    model.push_back(claim);
                }
                // One or two steps retire.
                0 | 2 => {
                    for _ in 0..=step % 2 {
                        retired = model.pop_front().map(|claim| claim.step).or(retired);
                    }
                }
                // A retired step is never canceled.
                _ if Some(named) > retired => {
                    assert_eq!(
                        claims.take_newest(named),
                        model.pop_back_if(|claim: &mut Pending| claim.step == named)
                    );
                }
                _ => {}
            }
            assert!(claims.since(retired).eq(&model), "{claims:?} {model:?}");
            assert!(claims.since(retired).rev().eq(model.iter().rev()));
            for claim in &model {
                assert_eq!(claims.of(claim.step), Some(claim));
            }
        }
        claims.clear();
        assert_eq!(claims.since(None).count(), 0);
    }
}

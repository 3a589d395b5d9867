use crate::{RareList, StepId};

/// One claim in flight of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) step: StepId,
    /// Rows of the sequence that the step writes, counted from its first slot. A truncation cuts them.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Whether they are tree nodes.
    pub(crate) is_tree: bool,
}

impl Pending {
    pub(crate) fn tokens(&self) -> u32 {
        self.end - self.start
    }
}

/// Claims that are kept beside their sequence; an overlapped loop has no more.
const NEAR: usize = 2;

/// A sequence's claims in flight, oldest first. The first ones lie in place, because a step of thousands of sequences would
/// otherwise wait for memory once more for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    near: [Pending; NEAR],
    count: u32,
    /// Those behind `near`, when that is full.
    far: RareList<Pending>,
}

impl Claims {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.far.take();
    }

    #[inline]
    pub(crate) fn push(&mut self, claim: Pending) {
        match self.near.get_mut(self.count as usize) {
            Some(place) => {
                *place = claim;
                self.count += 1;
            }
            None => self.far.make().push(claim),
        }
    }

    /// Takes the oldest if it belongs to `step`.
    #[inline]
    pub(crate) fn take_oldest(&mut self, step: StepId) -> Option<Pending> {
        let oldest = self.near[0];
        if self.count == 0 || oldest.step != step {
            return None;
        }
        self.near.copy_within(1.., 0);
        match self.far.edit(|far| far.remove(0)) {
            Some(next) => self.near[NEAR - 1] = next,
            None => self.count -= 1,
        }
        Some(oldest)
    }

    /// Takes the newest if it belongs to `step`.
    pub(crate) fn take_newest(&mut self, step: StepId) -> Option<Pending> {
        let newest = *self.iter().next_back().filter(|claim| claim.step == step)?;
        if self.far.edit(Vec::pop).is_none() {
            self.count -= 1;
        }
        Some(newest)
    }

    /// The claim of `step`.
    #[inline]
    pub(crate) fn of(&self, step: StepId) -> Option<&Pending> {
        // Few steps are in flight, and the one asked for is mostly the newest.
        match self.near.get(self.count.wrapping_sub(1) as usize) {
            Some(newest) if newest.step == step => Some(newest),
            _ => self.iter().find(|claim| claim.step == step),
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Pending> {
        self.near[..self.count as usize].iter().chain(self.far.iter())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.near[..self.count as usize].iter_mut().chain(self.far.iter_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn agrees_with_a_queue() {
        let (mut claims, mut model, mut state) = (Claims::default(), VecDeque::new(), 5u64);
        for step in 0..4000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let claim = Pending { step: StepId(step), ..Pending::default() };
            let named = StepId(step.saturating_sub(state >> 60));
            match state >> 40 & 3 {
                0 | 1 if model.len() < 6 => {
                    claims.push(claim);
                    model.push_back(claim);
                }
                0 | 2 => {
                    assert_eq!(
                        claims.take_oldest(named),
                        model.pop_front_if(|claim: &mut Pending| claim.step == named)
                    );
                    let oldest = model.front().map(|claim| claim.step).unwrap_or_default();
                    assert_eq!(claims.take_oldest(oldest), model.pop_front());
                }
                _ => {
                    assert_eq!(
                        claims.take_newest(named),
                        model.pop_back_if(|claim: &mut Pending| claim.step == named)
                    );
                }
            }
            assert!(claims.iter().eq(&model), "{claims:?} {model:?}");
            assert!(claims.iter().rev().eq(model.iter().rev()));
            assert_eq!(claims.is_empty(), model.is_empty());
        }
        claims.clear();
        assert_eq!(claims.iter().count(), 0);
    }
}

//! `SlotCopies`: the queue of slot copies (`SlotCopy`) that the next step runs before it writes K
//! and V.
//!
//! States of a batch of copies: *waiting* → *sent* with a step (`claim`) → gone (`retire`), or
//! waiting again (`cancel`). Copies from several operations merge into one list that reads all
//! sources before it writes any destination. A copy whose source is an earlier copy's destination
//! is therefore redirected to that copy's source. The property test compares merged with sequential
//! execution.

use crate::contract::ids::StepId;
use crate::contract::section::SlotCopy;
use crate::contract::usage::BlockUse;
use std::collections::{BTreeMap, VecDeque};

/// Slot copies on their way into plans.
///
/// An operation that moves KV rows (committing draft nodes, copy-on-write of a partial block,
/// compaction) leaves its copies here. The next claim takes them, and that step's plan carries
/// them, however often it is written.
#[derive(Clone, Debug, Default)]
pub struct SlotCopies {
    waiting: Vec<SlotCopy>,
    sent: VecDeque<(StepId, Vec<SlotCopy>)>,
    spare: Vec<Vec<SlotCopy>>,
}

impl SlotCopies {
    /// Adds one operation's copies, which happen after all that wait already.
    pub fn push(&mut self, moves: &[SlotCopy]) {
        if self.waiting.is_empty() {
            self.waiting.extend(moves.iter().filter(|m| m.from != m.to));
        } else if !moves.is_empty() {
            merge(&mut self.waiting, moves);
        }
    }

    /// Assigns all waiting copies to a step.
    pub fn claim(&mut self, step: StepId) {
        if !self.waiting.is_empty() {
            let next = self.spare.pop().unwrap_or_default();
            self.sent.push_back((step, std::mem::replace(&mut self.waiting, next)));
        }
    }

    /// The copies that a step carries.
    pub fn of(&self, step: StepId) -> &[SlotCopy] {
        self.sent.iter().find(|(sent, _)| *sent == step).map_or(&[], |(_, moves)| moves)
    }

    /// Copies that no step carries yet.
    pub fn waiting(&self) -> &[SlotCopy] {
        &self.waiting
    }

    /// Marks the slots that waiting copies will read as leased, if they are free.
    pub(crate) fn lease_sources(&self, slots: &mut Vec<BlockUse>) {
        for copy in &self.waiting {
            let from = copy.from as usize;
            slots.resize(slots.len().max(from + 1), BlockUse::Free);
            if slots[from] == BlockUse::Free {
                slots[from] = BlockUse::Leased;
            }
        }
    }

    /// Drops waiting copies for which `gone` is true: their result will not be read.
    pub fn drop_waiting(&mut self, gone: impl Fn(&SlotCopy) -> bool) {
        self.waiting.retain(|m| !gone(m));
    }

    /// A step has run, and with it its copies.
    pub fn retire(&mut self, step: StepId) {
        if self.sent.front().is_some_and(|(sent, _)| *sent == step)
            && let Some((_, mut moves)) = self.sent.pop_front()
        {
            moves.clear();
            self.spare.push(moves);
        }
    }

    /// A step was not run: its copies wait again, in front of later ones.
    pub fn cancel(&mut self, step: StepId) {
        if self.sent.back().is_some_and(|(sent, _)| *sent == step)
            && let Some((_, mut moves)) = self.sent.pop_back()
        {
            std::mem::swap(&mut moves, &mut self.waiting);
            self.push(&moves);
            moves.clear();
            self.spare.push(moves);
        }
    }

    /// Drops all copies.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.sent.clear();
    }
}

/// Composes two lists into one that may run at once (all reads before all writes): a source that
/// `earlier` writes becomes the source of that copy.
fn merge(earlier: &mut Vec<SlotCopy>, later: &[SlotCopy]) {
    let mut source: BTreeMap<_, _> = earlier.iter().map(|m| (m.to, m.from)).collect();
    let resolved: Vec<_> =
        later.iter().map(|m| (m.to, source.get(&m.from).copied().unwrap_or(m.from))).collect();
    source.extend(resolved);
    earlier.clear();
    earlier
        .extend(source.into_iter().filter(|(to, from)| to != from).map(|(to, from)| SlotCopy { from, to }));
}

#[cfg(test)]
mod tests {
    use crate::shared::slot_copies::*;
    use proptest::prelude::*;

    fn apply(rows: &mut [u32], moves: &[SlotCopy]) {
        let read: Vec<_> = moves.iter().map(|m| rows[m.from as usize]).collect();
        moves.iter().zip(read).for_each(|(m, row)| rows[m.to as usize] = row);
    }

    fn batch() -> impl Strategy<Value = Vec<SlotCopy>> {
        proptest::collection::btree_map(0u32..12, 0u32..12, 0..8)
            .prop_map(|moves| moves.into_iter().map(|(to, from)| SlotCopy { from, to }).collect())
    }

    proptest! {
        #[test]
        fn merged_copies_equal_sequential_copies(
            batches in proptest::collection::vec(batch(), 1..6),
            taken in 0usize..6,
        ) {
            let mut one_by_one: Vec<u32> = (100..112).collect();
            let mut at_once = one_by_one.clone();
            let mut moves = SlotCopies::default();
            for (i, batch) in batches.iter().enumerate() {
                if i == taken {
                    moves.claim(StepId(1));
                }
                apply(&mut one_by_one, batch);
                moves.push(batch);
            }
            moves.cancel(StepId(1));
            apply(&mut at_once, moves.waiting());
            prop_assert_eq!(one_by_one, at_once);
        }
    }

    #[test]
    fn copies_stay_with_their_step() {
        let mut moves = SlotCopies::default();
        let (a, b) = (SlotCopy { from: 5, to: 1 }, SlotCopy { from: 6, to: 2 });
        moves.push(&[a]);
        moves.claim(StepId(1));
        moves.push(&[b]);
        moves.claim(StepId(2));
        moves.claim(StepId(3));
        assert_eq!(
            (moves.of(StepId(1)), moves.of(StepId(2)), moves.of(StepId(3))),
            (&[a][..], &[b][..], &[][..])
        );
        moves.retire(StepId(1));
        assert_eq!(moves.of(StepId(1)), []);
        moves.cancel(StepId(3));
        moves.cancel(StepId(2));
        assert_eq!(moves.waiting(), [b]);
    }
}

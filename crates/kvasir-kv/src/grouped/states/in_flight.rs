//! `StatesInFlight`: the state rows of the steps in flight, and what canceling a step restores.

use crate::contract::ids::{Position, SeqId, Slot, StepId};
use crate::contract::state_section::{StateRow, StateSave};
use crate::grouped::states::sequence::LiveState;
use std::collections::VecDeque;

/// One batch row of a claimed step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowInFlight {
    pub(crate) seq: SeqId,
    /// The row as the plan has it.
    pub(crate) planned: StateRow,
    /// Live state of the sequence before the claim.
    pub(crate) live_before: Option<LiveState>,
    /// Length of the sequence before the claim.
    pub(crate) len_before: Position,
    /// Whether the claim took the tail.
    pub(crate) took_tail: bool,
    /// Whether canceling the step restores `live_before`. Cleared by a rewind to
    /// `len_before` or below.
    pub(crate) is_restorable: bool,
}

/// One claimed step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepInFlight {
    pub(crate) step: StepId,
    pub(crate) rows: Vec<RowInFlight>,
    pub(crate) saves: Vec<StateSave>,
}

impl StepInFlight {
    /// The slots that a row of this step writes: the live state and the saves.
    pub(crate) fn writes_of(&self, row: &RowInFlight) -> impl Iterator<Item = Slot> {
        let live = (row.planned.commit > 0).then_some(row.planned.to);
        let saves = &self.saves[row.planned.saves.range()];
        live.into_iter().chain(saves.iter().map(|save| save.slot))
    }
}

/// The claimed steps, oldest first. The caller checks their order with the primary cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatesInFlight {
    steps: VecDeque<StepInFlight>,
    spare: Vec<StepInFlight>,
}

impl StatesInFlight {
    /// A step without rows, which reuses the memory of an ended one.
    pub(crate) fn begin(&mut self, step: StepId) -> StepInFlight {
        StepInFlight { step, ..self.spare.pop().unwrap_or_default() }
    }

    pub(crate) fn push(&mut self, step: StepInFlight) {
        self.steps.push_back(step);
    }

    pub(crate) fn get(&self, step: StepId) -> Option<&StepInFlight> {
        self.steps.iter().rev().find(|flight| flight.step == step)
    }

    pub(crate) fn take_oldest(&mut self, step: StepId) -> Option<StepInFlight> {
        let is_oldest = self.steps.front().is_some_and(|flight| flight.step == step);
        if is_oldest { self.steps.pop_front() } else { None }
    }

    pub(crate) fn take_newest(&mut self, step: StepId) -> Option<StepInFlight> {
        let is_newest = self.steps.back().is_some_and(|flight| flight.step == step);
        if is_newest { self.steps.pop_back() } else { None }
    }

    /// The slots that steps in flight write for a sequence. Their content is undefined until the
    /// step retires, because it may fail.
    pub(crate) fn pending_writes(&self, seq: SeqId) -> Vec<Slot> {
        let mut slots = Vec::new();
        for flight in &self.steps {
            for row in flight.rows.iter().filter(|row| row.seq == seq) {
                slots.extend(flight.writes_of(row));
            }
        }
        slots
    }

    /// Keeps the memory of an ended step for `begin`.
    pub(crate) fn recycle(&mut self, mut step: StepInFlight) {
        step.rows.clear();
        step.saves.clear();
        self.spare.push(step);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StepInFlight> {
        self.steps.iter()
    }

    /// The rows of a sequence in all steps.
    pub(crate) fn rows_of(&mut self, seq: SeqId) -> impl Iterator<Item = &mut RowInFlight> {
        self.steps.iter_mut().flat_map(|flight| &mut flight.rows).filter(move |row| row.seq == seq)
    }
}

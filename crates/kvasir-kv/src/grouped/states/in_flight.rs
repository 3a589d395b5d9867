//! `StatesInFlight`: the state rows of steps in flight, as they go into plans, and what a cancel
//! restores.

use crate::contract::ids::{Position, SeqId, StepId};
use crate::contract::state_section::{StateRow, StateSave};
use crate::grouped::states::sequence::Live;
use std::collections::VecDeque;

/// One batch row of a claimed step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowInFlight {
    pub(crate) seq: SeqId,
    /// As the plan has it; its `tail` is the seat.
    pub(crate) row: StateRow,
    /// Live state of the sequence before the claim, and its length.
    pub(crate) before: Option<Live>,
    pub(crate) start: Position,
    /// Whether the claim took the seat.
    pub(crate) took_seat: bool,
    /// Whether a cancel returns the sequence to `before`. A rewind to `start` or below it ends that.
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
    /// The saves of a row.
    pub(crate) fn saves_of(&self, row: &RowInFlight) -> &[StateSave] {
        &self.saves[row.row.saves.range()]
    }
}

/// The claimed steps, oldest first. The primary cache checks their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatesInFlight {
    steps: VecDeque<StepInFlight>,
    spare: Vec<StepInFlight>,
}

impl StatesInFlight {
    /// Begins a step, in memory of an earlier one.
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

    /// Keeps the memory of an ended step.
    pub(crate) fn recycle(&mut self, mut step: StepInFlight) {
        step.rows.clear();
        step.saves.clear();
        self.spare.push(step);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StepInFlight> {
        self.steps.iter()
    }

    /// The rows of a sequence, mutable.
    pub(crate) fn rows_of(&mut self, seq: SeqId) -> impl Iterator<Item = &mut RowInFlight> {
        self.steps.iter_mut().flat_map(|flight| &mut flight.rows).filter(move |row| row.seq == seq)
    }
}

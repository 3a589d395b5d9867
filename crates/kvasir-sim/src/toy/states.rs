//! Recurrent states of the toy device: `S = mix(S, e)` over the values of all tokens.
//!
//! The shadow of a state is the prefix that it covers. Violations: a row reads a state of another
//! prefix or position, replays tokens of another sequence, or writes a slot that another row reads
//! or writes. A failed step spoils the states and tails that it had to write.

use crate::toy::model::{STATE_START, mix};
use crate::toy::shadow::Cell;
use crate::toy::{Toy, grown};
use kvasir_kv::{Plan, Position, Slot, StateRow};

/// A recurrent state, and the prefix that it covers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecurrentState {
    value: u64,
    /// Digest of the prefix that it covers.
    tag: u64,
    /// Length of that prefix.
    len: Position,
    /// Whether a step has written the slot.
    is_written: bool,
    /// Whether that step failed, so that the value is wrong.
    spoiled: bool,
}

impl RecurrentState {
    /// The state before the first token.
    fn initial() -> Self {
        Self { value: STATE_START, is_written: true, ..Self::default() }
    }
}

/// The input of the recurrence for one token. A tail row stores that of a draft token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Input {
    cell: Cell,
    position: Position,
}

/// The progress of the recurrence over the inputs of one row of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    row: StateRow,
    state: RecurrentState,
    /// Number of inputs so far.
    inputs: u32,
}

impl Toy {
    /// Checks that no row of a step writes a state that another row reads or writes.
    pub(super) fn check_states(&mut self, plan: &Plan) {
        let states = &plan.states;
        let written = |row: &StateRow| {
            let saves = states.saves.get(row.saves.range()).unwrap_or(&[]).iter().map(|save| save.slot);
            saves.chain((row.commit > 0).then_some(row.to)).collect::<Vec<Slot>>()
        };
        for (i, row) in states.rows.iter().enumerate() {
            let own = written(row);
            let others = states.rows.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| other);
            for other in others {
                let from = other.from.map(|(_, slot)| slot);
                if written(other).into_iter().chain(from).any(|slot| own.contains(&slot)) {
                    self.note(format!(
                        "step {}: a row writes a state that another row reads or writes",
                        plan.step.0
                    ));
                }
            }
        }
    }

    /// Reads the state of a row and replays its tail. `None` if the plan has no states.
    pub(super) fn begin_scan(&mut self, plan: &Plan, index: usize) -> Option<Scan> {
        let row = *plan.states.rows.get(index)?;
        let state = match row.from {
            None => RecurrentState::initial(),
            Some((_, slot)) => self.states.get(slot as usize).copied().unwrap_or_default(),
        };
        if !state.is_written {
            self.note(format!("step {}: a row reads a state that was never written", plan.step.0));
        }
        let mut scan = Scan { row, state, inputs: 0 };
        for replayed in 0..row.replay as usize {
            let tail = self.tails.get(row.tail as usize);
            let input = tail.and_then(|tail| tail.get(replayed)).copied().unwrap_or_default();
            self.advance(plan, &mut scan, input);
        }
        Some(scan)
    }

    /// Applies the recurrence to one query of a row, unless it is redirected. Returns the state
    /// after it.
    pub(super) fn scan_query(
        &mut self,
        plan: &Plan,
        scan: &mut Scan,
        query: u32,
        cell: Cell,
        position: Position,
    ) -> u64 {
        if query >= scan.row.skip {
            self.advance(plan, scan, Input { cell, position });
        }
        scan.state.value
    }

    /// Applies the recurrence to one input, and stores the states and the tail row that the plan
    /// has for it.
    fn advance(&mut self, plan: &Plan, scan: &mut Scan, input: Input) {
        let Input { cell, position } = input;
        let RecurrentState { value, tag, len, spoiled, .. } = scan.state;
        let spoiled = spoiled || cell.spoiled;
        if !spoiled && (cell.before != tag || position != len) {
            self.note(format!(
                "step {}: position {position} is fed to the state of another prefix, of {len} tokens",
                plan.step.0
            ));
        }
        scan.state = RecurrentState {
            value: mix(value, cell.value),
            tag: cell.tag,
            len: position + 1,
            is_written: true,
            spoiled,
        };
        scan.inputs += 1;
        let saves = plan.states.saves.get(scan.row.saves.range()).unwrap_or(&[]);
        for save in saves.iter().filter(|save| save.after == scan.inputs) {
            *self.state_mut(save.slot) = scan.state;
        }
        if scan.inputs == scan.row.commit {
            *self.state_mut(scan.row.to) = scan.state;
        }
        if let Some(draft) = scan.inputs.checked_sub(scan.row.commit + 1) {
            let tail = self.tail_mut(scan.row.tail);
            tail.truncate(draft as usize);
            tail.push(input);
        }
    }

    /// Spoils the states and tails that a failed step had to write.
    pub(super) fn spoil_states(&mut self, plan: &Plan) {
        let spoiled =
            RecurrentState { value: 99, is_written: true, spoiled: true, ..RecurrentState::default() };
        for row in &plan.states.rows {
            if row.commit > 0 {
                *self.state_mut(row.to) = spoiled;
            }
            let cell = Cell { spoiled: true, ..Cell::default() };
            self.tail_mut(row.tail).iter_mut().for_each(|input| input.cell = cell);
        }
        plan.states.saves.iter().for_each(|save| *self.state_mut(save.slot) = spoiled);
    }

    fn state_mut(&mut self, slot: Slot) -> &mut RecurrentState {
        grown(&mut self.states, slot as usize)
    }

    fn tail_mut(&mut self, tail: Slot) -> &mut Vec<Input> {
        grown(&mut self.tails, tail as usize)
    }
}

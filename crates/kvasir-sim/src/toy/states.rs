//! Recurrent states of the toy device: `S = mix(S, e)` over the values of all tokens.
//!
//! The shadow of a state is the prefix that it covers. Violations: a row reads a state of another
//! prefix or position, replays tokens that are not its own, or writes what another row names. A
//! failed step spoils all that it should have written.

use crate::toy::Toy;
use crate::toy::model::{STATE_START, mix};
use crate::toy::shadow::Cell;
use kvasir_kv::{Plan, Position, Slot, StateRow};

/// A recurrent state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    value: u64,
    /// Digest of the prefix that it covers, and its length.
    tag: u64,
    at: Position,
    is_written: bool,
    /// A failed step did not write it.
    spoiled: bool,
}

impl State {
    /// The state before the first token.
    fn initial() -> Self {
        Self { value: STATE_START, is_written: true, ..Self::default() }
    }
}

/// One row of a tail: what a draft token feeds to the recurrence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Input {
    cell: Cell,
    at: Position,
}

/// The recurrence of one row of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    row: StateRow,
    state: State,
    /// Inputs so far.
    fed: u32,
}

impl Toy {
    /// Checks that no row of a step writes what another one names.
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
                    self.note(format!("step {}: two rows name a state that one writes", plan.step.0));
                }
            }
        }
    }

    /// Reads the state of a row and replays its tail; `None` if the model has no state.
    pub(super) fn begin_states(&mut self, plan: &Plan, index: usize) -> Option<Scan> {
        let row = *plan.states.rows.get(index)?;
        let state = match row.from {
            None => State::initial(),
            Some((_, slot)) => self.states.get(slot as usize).copied().unwrap_or_default(),
        };
        if !state.is_written {
            self.note(format!("step {}: a row reads a state that was never written", plan.step.0));
        }
        let mut scan = Scan { row, state, fed: 0 };
        for replayed in 0..row.replay as usize {
            let tail = self.tails.get(row.tail as usize);
            let input = tail.and_then(|tail| tail.get(replayed)).copied().unwrap_or_default();
            self.advance(plan, &mut scan, input);
        }
        Some(scan)
    }

    /// Feeds one query of a row, unless it is redirected; returns the state after it.
    pub(super) fn feed(&mut self, plan: &Plan, scan: &mut Scan, query: u32, cell: Cell, at: Position) -> u64 {
        if query >= scan.row.skip {
            self.advance(plan, scan, Input { cell, at });
        }
        scan.state.value
    }

    /// Feeds one input, and stores the states and the tail that the plan wants after it.
    fn advance(&mut self, plan: &Plan, scan: &mut Scan, input: Input) {
        let Input { cell, at } = input;
        let State { value, tag, at: covered, spoiled, .. } = scan.state;
        let spoiled = spoiled || cell.spoiled;
        if !spoiled && (cell.before != tag || at != covered) {
            self.note(format!(
                "step {}: position {at} is fed to the state of another prefix, of {covered} tokens",
                plan.step.0
            ));
        }
        scan.state =
            State { value: mix(value, cell.value), tag: cell.tag, at: at + 1, is_written: true, spoiled };
        scan.fed += 1;
        let saves = plan.states.saves.get(scan.row.saves.range()).unwrap_or(&[]);
        for save in saves.iter().filter(|save| save.after == scan.fed) {
            *self.state_mut(save.slot) = scan.state;
        }
        if scan.fed == scan.row.commit {
            *self.state_mut(scan.row.to) = scan.state;
        }
        if let Some(draft) = scan.fed.checked_sub(scan.row.commit + 1) {
            let tail = self.tail_mut(scan.row.tail);
            tail.truncate(draft as usize);
            tail.push(input);
        }
    }

    /// Spoils the states and tails that a failed step had to write.
    pub(super) fn spoil_states(&mut self, plan: &Plan) {
        let spoiled = State { value: 99, is_written: true, spoiled: true, ..State::default() };
        for row in &plan.states.rows {
            if row.commit > 0 {
                *self.state_mut(row.to) = spoiled;
            }
            let cell = Cell { spoiled: true, ..Cell::default() };
            self.tail_mut(row.tail).iter_mut().for_each(|input| input.cell = cell);
        }
        plan.states.saves.iter().for_each(|save| *self.state_mut(save.slot) = spoiled);
    }

    fn state_mut(&mut self, slot: Slot) -> &mut State {
        let slot = slot as usize;
        if slot >= self.states.len() {
            self.states.resize(slot + 1, State::default());
        }
        &mut self.states[slot]
    }

    fn tail_mut(&mut self, tail: Slot) -> &mut Vec<Input> {
        let tail = tail as usize;
        if tail >= self.tails.len() {
            self.tails.resize(tail + 1, Vec::new());
        }
        &mut self.tails[tail]
    }
}

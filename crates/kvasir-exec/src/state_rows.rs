//! [`StateRowValidator`]: validation of the state rows of steps, for executors with a pool of
//! recurrent states.
//!
//! A step is valid if the following holds for every row except dummy rows:
//!
//! - `from`, `to`, the tail and the slots of saves are in the pool, except that `from` may be in an
//!   attached frozen pool;
//! - a tail has room for the `replay` tokens and for the draft tokens;
//! - `replay <= commit <= inputs`, the inputs after `commit` are the row's drafts, and they form a
//!   chain;
//! - the saves' input counts (`after`) increase and lie within `1 ..= commit`;
//! - the inputs have consecutive positions, from 0 on if the row starts from the initial state;
//! - no other row reads or writes a slot that the row writes, and none of its saves overwrites
//!   another slot of the row.
//!
//! The state rows of dummy rows have the default value. A step of dummy rows alone may omit its
//! state rows.

use crate::batch::{Batch, BatchRow, RowKind};
use crate::executor::{Step, StepError};
use kvasir_kv::{PlanRow, PoolId, Position, Slot, StateConfig, StateRow, StateSave};

/// Reuses its scratch memory between steps.
#[derive(Clone, Debug)]
pub struct StateRowValidator {
    config: StateConfig,
    /// The attached frozen pools, each with its number of slots.
    frozen: Vec<(PoolId, u32)>,
    /// Every slot that the step writes, with the index of its row.
    written: Vec<(Slot, usize)>,
    tails: Vec<Slot>,
}

impl StateRowValidator {
    /// Validates against a pool of this size.
    pub fn new(config: StateConfig) -> Self {
        Self { config, frozen: Vec::new(), written: Vec::new(), tails: Vec::new() }
    }

    /// Attaches a frozen pool of `slots` slots (the states of a shared prefix), which rows may then
    /// read.
    pub fn attach(&mut self, id: PoolId, slots: u32) {
        self.frozen.retain(|(other, _)| *other != id);
        self.frozen.push((id, slots));
    }

    /// Checks the state rows of a step that passed [`Step::check_sizes`]. Takes O(n log n) time for
    /// n rows and saves.
    pub fn check(&mut self, step: &Step) -> Result<(), StepError> {
        let (batch, plan) = (&step.batch, &step.plan);
        let states = &plan.states;
        if states.is_empty() {
            return match batch.rows.iter().find(|row| row.kind != RowKind::Dummy) {
                Some(row) => invalid(row, "has no state row"),
                None => Ok(()),
            };
        }
        if states.rows.len() != batch.rows.len() {
            let (rows, states) = (batch.rows.len(), states.rows.len());
            return Err(StepError::Failed(format!("plan has {states} state rows for {rows} batch rows")));
        }
        self.written.clear();
        self.tails.clear();
        for (at, (row, plan_row)) in batch.rows.iter().zip(&plan.rows).enumerate() {
            let state = &states.rows[at];
            let Some(saves) = states.saves.get(state.saves.range()) else {
                return invalid(row, "has saves beyond the list of the plan");
            };
            if row.kind == RowKind::Dummy {
                if *state == StateRow::default() {
                    continue;
                }
                return invalid(row, "has a state, but its batch row is a dummy");
            }
            self.check_row(row, plan_row, state, saves)?;
            let positions = &plan.positions[plan_row.queries.range()][state.skip as usize..];
            check_positions(row, state, positions)?;
            self.written.extend((state.commit > 0).then_some((state.to, at)));
            self.written.extend(saves.iter().map(|save| (save.slot, at)));
            self.tails.push(state.tail);
        }
        self.check_conflicts(batch, &states.rows)
    }

    /// Checks one row against the pool and against its batch row.
    fn check_row(
        &self,
        row: &BatchRow,
        plan_row: &PlanRow,
        state: &StateRow,
        saves: &[StateSave],
    ) -> Result<(), StepError> {
        let StateConfig { live, tail_rows, .. } = self.config;
        let slots = self.config.slots();
        if let Some((pool, slot)) = state.from.filter(|(pool, _)| *pool != PoolId(0)) {
            let Some((_, slots)) = self.frozen.iter().find(|(id, _)| *id == pool) else {
                return invalid(row, &format!("reads state pool {}, which is not attached", pool.0));
            };
            if slot >= *slots {
                let id = pool.0;
                return invalid(row, &format!("reads state slot {slot} of pool {id}, which has {slots}"));
            }
        }
        let from = state.own_from();
        let to = (state.commit > 0).then_some(state.to);
        if let Some(slot) =
            from.into_iter().chain(to).chain(saves.iter().map(|save| save.slot)).find(|slot| *slot >= slots)
        {
            return invalid(row, &format!("has state slot {slot}, but the pool has {slots} slots"));
        }
        if state.tail >= live {
            return invalid(row, &format!("has tail {}, but the pool has {live} tails", state.tail));
        }
        if row.drafts.tree.is_some() {
            return invalid(row, "has a draft tree, which recurrent layers cannot verify");
        }
        let queries = plan_row.queries.len.checked_sub(state.skip);
        let inputs = queries.and_then(|queries| queries.checked_add(state.replay));
        let drafts = inputs.and_then(|inputs| inputs.checked_sub(state.commit));
        if drafts != Some(row.drafts.count) || state.replay > state.commit {
            let StateRow { skip, replay, commit, .. } = state;
            let (count, drafts) = (plan_row.queries.len, row.drafts.count);
            return invalid(
                row,
                &format!(
                    "skips {skip}, replays {replay} and commits {commit} of {count} queries with {drafts} drafts"
                ),
            );
        }
        if state.replay.max(row.drafts.count) > tail_rows {
            return invalid(
                row,
                &format!(
                    "has {} replayed and {} draft tokens, but a tail has {tail_rows} rows",
                    state.replay, row.drafts.count
                ),
            );
        }
        let is_increasing = saves.is_sorted_by(|a, b| a.after < b.after);
        if !is_increasing || saves.iter().any(|save| !(1..=state.commit).contains(&save.after)) {
            return invalid(
                row,
                &format!("has saves out of order or outside the {} committed inputs", state.commit),
            );
        }
        if saves.iter().any(|save| Some(save.slot) == from) {
            return invalid(row, "saves a checkpoint to the slot that it reads");
        }
        Ok(())
    }

    /// Checks that no row reads or writes a slot or tail that another row writes.
    fn check_conflicts(&mut self, batch: &Batch, rows: &[StateRow]) -> Result<(), StepError> {
        self.tails.sort_unstable();
        if let Some(pair) = self.tails.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StepError::Failed(format!("two rows of the step use tail {}", pair[0])));
        }
        self.written.sort_unstable();
        if let Some(pair) = self.written.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(StepError::Failed(format!("the step writes state slot {} twice", pair[0].0)));
        }
        for (at, row) in rows.iter().enumerate() {
            let Some(from) = row.own_from() else { continue };
            let writer = self.written.binary_search_by_key(&from, |(slot, _)| *slot);
            if writer.is_ok_and(|writer| self.written[writer].1 != at) {
                return invalid(
                    &batch.rows[at],
                    &format!("reads state slot {from}, which another row writes"),
                );
            }
        }
        Ok(())
    }
}

/// Checks that the queries after the skipped ones have consecutive positions, and that a row that
/// starts from the initial state starts at position 0.
fn check_positions(row: &BatchRow, state: &StateRow, positions: &[Position]) -> Result<(), StepError> {
    if !positions.is_sorted_by(|a, b| a.checked_add(1) == Some(*b)) {
        return invalid(row, "has positions that are not consecutive");
    }
    let starts_at_zero = state.replay == 0 && positions.first().is_none_or(|first| *first == 0);
    if state.from.is_none() && !starts_at_zero {
        return invalid(row, "starts from the initial state, but not at position 0");
    }
    Ok(())
}

fn invalid<T>(row: &BatchRow, why: &str) -> Result<T, StepError> {
    Err(StepError::Failed(format!("the state row of request {} {why}", row.request)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Drafts;
    use kvasir_kv::{Span, StateSection};

    const CONFIG: StateConfig = StateConfig { live: 2, checkpoints: 2, tail_rows: 3, interval: 0 };

    /// Two rows: a prompt of 4 tokens with a save, and a decode with 2 drafts and a replayed one.
    fn step() -> Step {
        let mut step = Step::default();
        let mut add = |positions: &[Position], drafts: u32, state: StateRow| {
            let tokens = Span::new(step.batch.tokens.len(), positions.len());
            step.batch.tokens.extend(positions);
            step.plan.positions.extend(positions);
            let drafts = Drafts { count: drafts, tree: None };
            step.batch.rows.push(BatchRow { tokens, drafts, ..BatchRow::default() });
            step.plan.full.rows.push(PlanRow { queries: tokens, ..PlanRow::default() });
            step.plan.states.rows.push(state);
        };
        let prompt = StateRow { to: 0, tail: 0, commit: 4, saves: Span::new(0, 1), ..StateRow::default() };
        add(&[0, 1, 2, 3], 0, prompt);
        let from = Some((PoolId(0), 1));
        add(&[7, 8, 9], 2, StateRow { from, to: 1, tail: 1, replay: 1, commit: 2, ..StateRow::default() });
        step.plan.states.saves = vec![StateSave { after: 2, slot: 2 }];
        step.plan.states.bound = 3;
        step
    }

    fn check(step: &Step) -> Result<(), StepError> {
        StateRowValidator::new(CONFIG).check(step)
    }

    #[test]
    fn rows_with_saves_replays_and_drafts_are_valid() {
        assert_eq!(check(&step()), Ok(()));
        let mut fork = step();
        fork.plan.states.rows[0].from = Some((PoolId(0), 3));
        fork.plan.states.rows[1] = StateRow { from: Some((PoolId(0), 3)), ..fork.plan.states.rows[1] };
        assert_eq!(check(&fork), Ok(()), "two rows may read one checkpoint");
        // Row 0 writes slot 0 of the executor's own pool.
        fork.plan.states.rows[1].from = Some((PoolId(3), 0));
        let mut validator = StateRowValidator::new(CONFIG);
        validator.attach(PoolId(3), 1);
        assert_eq!(validator.check(&fork), Ok(()), "a row may read a frozen pool");
        fork.plan.states.rows[1].from = Some((PoolId(3), 1));
        assert!(validator.check(&fork).unwrap_err().to_string().contains("slot 1 of pool 3, which has 1"));
    }

    #[test]
    fn inconsistent_rows_are_rejected() {
        let fails = |change: &dyn Fn(&mut StateSection, &mut Step), what: &str| {
            let mut step = step();
            let mut states = std::mem::take(&mut step.plan.states);
            change(&mut states, &mut step);
            step.plan.states = states;
            let error = check(&step).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        };
        fails(&|states, _| states.rows.clear(), "no state row");
        fails(&|states, _| states.rows.truncate(1), "plan has 1 state rows");
        fails(&|states, _| states.rows[0].to = 4, "slot 4, but the pool has 4 slots");
        fails(&|states, _| states.rows[0].from = Some((PoolId(0), 9)), "slot 9");
        fails(&|states, _| states.rows[0].from = Some((PoolId(3), 0)), "pool 3");
        fails(&|states, _| states.saves[0].slot = 4, "slot 4");
        fails(&|states, _| states.saves.clear(), "saves beyond the list");
        fails(&|states, _| states.rows[1].tail = 2, "tail 2");
        fails(&|states, _| states.rows[1].tail = 0, "tail 0");
        fails(&|states, _| states.rows[1].to = 0, "slot 0 twice");
        fails(&|states, _| states.rows[1].from = Some((PoolId(0), 0)), "another row writes");
        fails(&|states, _| states.rows[1].from = Some((PoolId(0), 2)), "another row writes");
        fails(&|states, _| states.saves[0].slot = 0, "slot 0 twice");
        fails(&|states, _| states.saves[0].after = 0, "saves out of order");
        fails(&|states, _| states.saves[0].after = 5, "saves out of order");
        fails(&|states, _| states.rows[0].skip = 5, "skips 5");
        fails(&|states, _| states.rows[0].commit = 3, "commits 3");
        fails(&|states, _| states.rows[1].replay = 2, "replays 2");
        fails(&|states, _| states.rows[1].commit = u32::MAX, "commits");
        fails(
            &|states, step| {
                (states.rows[1].commit, step.batch.rows[1].drafts.count) = (0, 4);
            },
            "replays 1 and commits 0",
        );
        fails(&|_, step| step.batch.rows[1].drafts.tree = Some(Span::new(0, 2)), "draft tree");
        fails(&|_, step| step.plan.positions[6] = 8, "not consecutive");
        fails(&|_, step| (0..4).for_each(|at| step.plan.positions[at] += 1), "not at position 0");
        fails(&|_, step| step.batch.rows[0].kind = RowKind::Dummy, "dummy");
        let mut long_replay = step();
        let row = long_replay.plan.states.rows[1];
        long_replay.plan.states.rows[1] = StateRow { replay: 4, commit: 5, ..row };
        assert!(check(&long_replay).unwrap_err().to_string().contains("a tail has 3 rows"));
    }

    #[test]
    fn dummies_have_empty_state_rows_or_none() {
        assert_eq!(check(&Step::dummy(2, 0)), Ok(()));
        let mut padded = step();
        padded.batch.rows[0].kind = RowKind::Dummy;
        padded.plan.states.rows[0] = StateRow::default();
        assert_eq!(check(&padded), Ok(()));
    }
}

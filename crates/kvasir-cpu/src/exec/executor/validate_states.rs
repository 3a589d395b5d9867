//! Validates the state section of a plan, so that recurrent kernels need no bounds checks.
//!
//! Checked are, per row, the counts of inputs against tail and queries, and every slot against the
//! pool; over all rows, that a written slot or used tail belongs to one row only. Draft trees have no
//! order of inputs and are refused.

use crate::exec::executor::CpuExecutor;
use crate::memory::state_pool::StatePool;
use kvasir_exec::{BatchRow, RowKind, Step, StepError};
use kvasir_kv::{Slot, StateRow, StateSave, StateSection};

/// A use of a slot by a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    slot: Slot,
    row: usize,
    kind: UseKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UseKind {
    Read,
    /// Written as `to`, which may be the slot that is read.
    Result,
    Save,
}

/// Scratch memory of the validation.
#[derive(Debug, Default)]
pub(crate) struct SlotUses {
    slots: Vec<Use>,
    tails: Vec<Slot>,
}

fn failed(why: String) -> StepError {
    StepError::Failed(why)
}

impl CpuExecutor {
    /// Rejects an inconsistent state section; otherwise prepares the inputs of the recurrent layers.
    /// A program without such layers ignores the section: a draft model may run the target's plan.
    pub(super) fn validate_states(&mut self, step: &Step) -> Result<(), StepError> {
        let (batch, section) = (&step.batch, &step.plan.states);
        if !self.model.program.is_recurrent() {
            return Ok(());
        }
        let Some(states) = &mut self.states else {
            let why = "the model has recurrent layers, and the executor was made without states";
            return Err(failed(why.into()));
        };
        states.rows.clear();
        if section.is_empty() && !batch.is_dummy() {
            return Err(failed("the model has recurrent layers, and the plan has no states".into()));
        }
        let SlotUses { slots, tails } = &mut self.slot_uses;
        slots.clear();
        tails.clear();
        for (number, row) in batch.rows.iter().enumerate() {
            let planned = section.rows.get(number).filter(|_| row.kind != RowKind::Dummy);
            let Some(planned) = planned else {
                states.rows.push(row.tokens, None, &[]);
                continue;
            };
            let saves = saves_of(section, planned)?;
            check_row(&states.pool, row, planned, saves)?;
            if planned.commit > 0 {
                let mut named = |slot, kind| slots.push(Use { slot, row: number, kind });
                planned.from.into_iter().for_each(|(_, slot)| named(slot, UseKind::Read));
                named(planned.to, UseKind::Result);
                saves.iter().for_each(|save| named(save.slot, UseKind::Save));
                let inputs = planned.replay + row.tokens.len - planned.skip;
                if planned.replay > 0 || inputs > planned.commit {
                    tails.push(planned.tail);
                }
            }
            states.rows.push(row.tokens, Some(planned), saves);
        }
        slots.sort_unstable();
        let conflicts = |uses: &&[Use]| match uses {
            [_] => false,
            // The row overwrites the state that it reads.
            [a, b] if a.row == b.row && b.kind == UseKind::Result => a.kind != UseKind::Read,
            uses => uses.iter().any(|used| used.kind != UseKind::Read),
        };
        if let Some([first, ..]) = slots.chunk_by(|a, b| a.slot == b.slot).find(conflicts) {
            return Err(failed(format!("the plan writes state slot {} and names it again", first.slot)));
        }
        tails.sort_unstable();
        if let Some(two) = tails.windows(2).find(|two| two[0] == two[1]) {
            return Err(failed(format!("two rows of the plan use state tail {}", two[0])));
        }
        Ok(())
    }
}

/// The saves of a row.
fn saves_of<'a>(section: &'a StateSection, row: &StateRow) -> Result<&'a [StateSave], StepError> {
    let end = row.saves.start.checked_add(row.saves.len);
    let saves = end.and_then(|end| section.saves.get(row.saves.start as usize..end as usize));
    saves.ok_or_else(|| failed("a state row names saves that the plan does not have".into()))
}

/// Checks one row by itself.
fn check_row(
    pool: &StatePool,
    row: &BatchRow,
    planned: &StateRow,
    saves: &[StateSave],
) -> Result<(), StepError> {
    let request = row.request;
    let wrong = |what: String| Err(failed(format!("the state row of request {request} {what}")));
    let StateRow { from, to, tail, replay, skip, commit, .. } = *planned;
    if row.drafts.tree.is_some() {
        return wrong("has a draft tree, which recurrent layers do not support".into());
    }
    let Some(queries) = row.tokens.len.checked_sub(skip) else {
        return wrong(format!("skips {skip} of {} queries", row.tokens.len));
    };
    let Some(inputs) = replay.checked_add(queries) else { return wrong(format!("replays {replay} inputs")) };
    if commit == 0 {
        if inputs > 0 || !saves.is_empty() {
            return wrong("has inputs, but commits none".into());
        }
        return Ok(());
    }
    if commit < replay || commit > inputs {
        return wrong(format!("commits {commit} of {inputs} inputs, of which {replay} are replayed"));
    }
    let rows = pool.tail_rows();
    let drafts = inputs - commit;
    if replay.max(drafts) as usize > rows {
        return wrong(format!("needs {} tail rows of {rows}", replay.max(drafts)));
    }
    if replay.max(drafts) > 0 && tail as usize >= pool.tails() {
        return wrong(format!("names tail {tail} of {}", pool.tails()));
    }
    let ascends = saves.windows(2).all(|two| two[0].after < two[1].after);
    if !ascends || saves.iter().any(|save| !(1..=commit).contains(&save.after)) {
        return wrong(format!("saves states that do not lie in order within {commit} inputs"));
    }
    if let Some((id, _)) = from.filter(|(id, _)| id.0 != 0) {
        return wrong(format!("reads state pool {}, and only pool 0 has states", id.0));
    }
    let named = from.map(|(_, slot)| slot).into_iter().chain([to]).chain(saves.iter().map(|save| save.slot));
    match named.into_iter().find(|slot| *slot as usize >= pool.slots()) {
        Some(slot) => wrong(format!("names state slot {slot} of {}", pool.slots())),
        None => Ok(()),
    }
}

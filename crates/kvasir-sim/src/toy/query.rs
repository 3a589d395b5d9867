//! One query of the toy device: the slots that it reads, the value that it stores, and the value
//! that its output is sampled from.
//!
//! Each window is folded separately: over the section of its window group, or over group 0 if the
//! plan has no section for it (a joined window, which positions delimit).

use crate::toy::Toy;
use crate::toy::model::{START, mix};
use crate::toy::shadow::{Cell, digest};
use kvasir_exec::{BatchRow, IN_FLIGHT};
use kvasir_kv::{Plan, PoolId, Position, Slot, Token};

/// One token of a step, and where it is in the batch and the plan.
pub(super) struct Query<'a> {
    pub(super) row: &'a BatchRow,
    pub(super) plan: &'a Plan,
    /// Index of the row in the step.
    pub(super) row_index: usize,
    /// Index of the query in its row.
    pub(super) query_index: u32,
    /// Index of the token in the step.
    pub(super) token_index: usize,
    pub(super) token: Token,
    /// Whether the token is not a draft.
    pub(super) is_known: bool,
}

impl Toy {
    /// Runs one query. Returns the value to sample from, and the stored cell.
    pub(super) fn run_query(&mut self, query: &Query<'_>) -> (u64, Cell) {
        let Query { row, plan, query_index, token_index, .. } = *query;
        let planned = &plan.rows[query.row_index];
        let position = plan.positions[token_index];
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        let mut foreign = false;
        for (i, (pool, slot, position)) in plan.entries(planned).enumerate() {
            if plan.sees(planned, query_index, i as u32) {
                foreign |= pool != PoolId(0);
                entries.push((slot, position));
            }
        }
        if foreign {
            self.note(format!("step {}: reads a pool that the toy does not have", plan.step.0));
        }
        let own = entries.pop();
        if own.map(|(_, position)| position) != Some(position) {
            self.note(format!(
                "step {}: a query at {position} does not see itself last: {own:?}",
                plan.step.0
            ));
        }
        let fed = match query.token {
            IN_FLIGHT => self.rows.get(row.pool_row.0 as usize).map_or(0, |state| state.newest),
            known => known,
        };
        let spoiled = entries.iter().any(|(slot, _)| self.slot(0, *slot).spoiled);
        let f = entries.iter().fold(START, |f, (slot, _)| mix(f, self.slot(0, *slot).value));
        let f = (0..self.shape.windows.len())
            .fold(f, |f, window| mix(f, self.fold_window(query, window, &entries)));
        let before = self.check_prefix(row, plan, &entries, position);
        if query.is_known && !spoiled {
            self.learn(row, plan, &entries, fed, before);
        }
        let value = mix(f, fed.into());
        let tag = digest(before, fed);
        let cell = Cell { value, token: fed, tag, before, spoiled };
        for (group, section) in plan.sections().enumerate() {
            *self.slot_mut(group, section.write_slots[token_index]) = cell;
        }
        if let Some((slot, _)) = own {
            let stored = self.slot(0, slot);
            let redirected = query_index < planned.redirected;
            if (slot != plan.write_slots[token_index]) != redirected {
                self.note(format!("step {}: the write of position {position} goes elsewhere", plan.step.0));
            }
            if stored.tag != tag && !stored.spoiled {
                self.note(format!("step {}: slot {slot} holds another prefix at {position}", plan.step.0));
            }
            self.entries = entries;
            return (mix(f, stored.value), cell);
        }
        self.entries = entries;
        (mix(f, value), cell)
    }

    /// Folds the values of the positions in a window before the query, and checks that they are
    /// those of group 0. `full` are the entries that the query sees in group 0, in order of
    /// position.
    fn fold_window(&mut self, query: &Query<'_>, window: usize, full: &[(Slot, Position)]) -> u64 {
        let Query { plan, query_index, token_index, .. } = *query;
        let (width, position_of_query) = (self.shape.windows[window], plan.positions[token_index]);
        let first = position_of_query.saturating_sub(width - 1);
        let is_inside = |position: Position| (first..position_of_query).contains(&position);
        let mut entries: Vec<(Slot, Position)> = match plan.windows.get(window) {
            None => full.to_vec(),
            Some(section) => {
                let planned = &section.rows[query.row_index];
                let visible = section.entries(planned).zip(0..);
                let visible = visible.filter(|(_, entry)| section.sees(planned, query_index, *entry));
                visible.map(|((_, slot, position), _)| (slot, position)).collect()
            }
        };
        entries.retain(|(_, position)| is_inside(*position));
        let group = if plan.windows.len() > window { window + 1 } else { 0 };
        let expected = full.iter().filter(|(_, position)| is_inside(*position));
        let tags = expected.clone().map(|(slot, _)| self.slot(0, *slot).tag);
        let is_other_prefix = |(tag, (slot, _)): (u64, &(Slot, Position))| {
            let cell = self.slot(group, *slot);
            cell.tag != tag && !cell.spoiled
        };
        let is_complete = entries.len() == expected.count();
        if !is_complete || tags.zip(&entries).any(is_other_prefix) {
            self.note(format!(
                "step {}: window {width} of position {position_of_query} lacks a row",
                plan.step.0
            ));
        }
        entries.iter().fold(START, |f, (slot, _)| mix(f, self.slot(group, *slot).value))
    }
}

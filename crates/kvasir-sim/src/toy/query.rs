//! One query of the toy device: what it reads, what it stores, and what its output depends on.
//!
//! The values of each window are folded apart: from the section of its group, or from group 0 if the
//! plan has none for it (joined windows, cut off by positions).

use crate::toy::Toy;
use crate::toy::model::{START, mix};
use crate::toy::shadow::{Cell, digest};
use kvasir_exec::{BatchRow, IN_FLIGHT};
use kvasir_kv::{Plan, PoolId, Position, Slot, Token};

/// The coordinates of one token of a step.
pub(super) struct Query<'a> {
    pub(super) row: &'a BatchRow,
    pub(super) plan: &'a Plan,
    /// Number of the row.
    pub(super) index: usize,
    /// Number of the query in its row, and in the step.
    pub(super) query: u32,
    pub(super) at: usize,
    pub(super) token: Token,
    /// Whether the token is no draft.
    pub(super) known: bool,
}

impl Toy {
    /// Runs one token of a row; returns the value to sample from, and what it stored.
    pub(super) fn query(&mut self, of: &Query<'_>) -> (u64, Cell) {
        let Query { row, plan, query, at, .. } = *of;
        let planned = &plan.rows[of.index];
        let position = plan.positions[at];
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        let mut foreign = false;
        for (i, (pool, slot, position)) in plan.entries(planned).enumerate() {
            if plan.sees(planned, query, i as u32) {
                foreign |= pool != PoolId(0);
                entries.push((slot, position));
            }
        }
        if foreign {
            self.note(format!("step {}: reads a pool that the toy has not", plan.step.0));
        }
        let own = entries.pop();
        if own.map(|(_, position)| position) != Some(position) {
            self.note(format!(
                "step {}: a query at {position} does not see itself last: {own:?}",
                plan.step.0
            ));
        }
        let token = match of.token {
            IN_FLIGHT => self.rows.get(row.pool_row.0 as usize).map_or(0, |state| state.newest),
            token => token,
        };
        let spoiled = entries.iter().any(|(slot, _)| self.slot(0, *slot).spoiled);
        let f = entries.iter().fold(START, |f, (slot, _)| mix(f, self.slot(0, *slot).value));
        let f = (0..self.shape.windows.len()).fold(f, |f, window| mix(f, self.window(of, window, &entries)));
        let before = self.check_prefix(row, plan, &entries, position);
        if of.known && !spoiled {
            self.learn(row, plan, &entries, token, before);
        }
        let value = mix(f, token.into());
        let tag = digest(before, token);
        let cell = Cell { value, token, tag, before, spoiled };
        for (group, section) in plan.sections().enumerate() {
            *self.slot_mut(group, section.write_slots[at]) = cell;
        }
        if let Some((slot, _)) = own {
            let stored = self.slot(0, slot);
            let redirected = query < planned.redirected;
            if (slot != plan.write_slots[at]) != redirected {
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

    /// Folds the values of a window before the query. `full` are its entries in group 0, in order of
    /// position.
    fn window(&mut self, of: &Query<'_>, window: usize, full: &[(Slot, Position)]) -> u64 {
        let Query { plan, query, at, .. } = *of;
        let (width, position) = (self.shape.windows[window], plan.positions[at]);
        let first = position.saturating_sub(width - 1);
        let seen = |at: Position| (first..position).contains(&at);
        let mut entries: Vec<(Slot, Position)> = match plan.windows.get(window) {
            None => full.to_vec(),
            Some(section) => {
                let planned = &section.rows[of.index];
                let visible = section.entries(planned).zip(0..);
                let visible = visible.filter(|(_, entry)| section.sees(planned, query, *entry));
                visible.map(|((_, slot, at), _)| (slot, at)).collect()
            }
        };
        entries.retain(|(_, at)| seen(*at));
        let group = if plan.windows.len() > window { window + 1 } else { 0 };
        let tags = full.iter().filter(|(_, at)| seen(*at)).map(|(slot, _)| self.slot(0, *slot).tag);
        let is_other = |(tag, (slot, _)): (u64, &(Slot, Position))| {
            let cell = self.slot(group, *slot);
            cell.tag != tag && !cell.spoiled
        };
        let is_complete = entries.len() == full.iter().filter(|(_, at)| seen(*at)).count();
        if !is_complete || tags.zip(&entries).any(is_other) {
            self.note(format!("step {}: window {width} of position {position} lacks a row", plan.step.0));
        }
        entries.iter().fold(START, |f, (slot, _)| mix(f, self.slot(group, *slot).value))
    }
}

//! Validates a step before anything is changed, so that kernels need no bounds checks on slots.
//!
//! Checked are:
//!
//! - the number of ranks and the sizes of batch and plan;
//! - that an encoder's rows are whole sequences;
//! - that the plan has a section per layer group;
//! - every written, copied and read KV slot against its pool;
//! - the restrictions of ring buffers;
//! - the state rows of a model with recurrent layers;
//! - tokens against the vocabulary, and that tokens in flight were sampled.

use crate::attention::views::Views;
use crate::exec::executor::CpuExecutor;
use kvasir_exec::{Batch, RowKind, Step, StepError};
use kvasir_kv::{GroupId, Mask, Plan, Section, Slot};
use std::sync::PoisonError;

fn failed(why: String) -> StepError {
    StepError::Failed(why)
}

/// Checks written and copied slots against the number of slots.
fn check_writes(section: &Section, slots: Slot) -> Result<(), StepError> {
    let moved = section.moves.iter().flat_map(|copy| [copy.from, copy.to]);
    if section.write_slots.iter().copied().chain(moved).any(|slot| slot >= slots) {
        return Err(failed(format!("plan names slots beyond the pool's {slots}")));
    }
    Ok(())
}

/// Lists the slots to write, each once, with the token whose rows go there. Several tokens may be
/// redirected to one dummy slot; it does not matter which of them is stored. K and V of dummy rows
/// are not stored: that would commit memory up to their slot.
fn collect_writes(batch: &Batch, section: &Section, writes: &mut Vec<(Slot, u32)>) {
    let stored = batch.rows.iter().filter(|row| row.kind != RowKind::Dummy);
    let tokens = stored.flat_map(|row| row.tokens.start..row.tokens.start + row.tokens.len);
    writes.extend(tokens.map(|token| (section.write_slots[token as usize], token)));
    writes.sort_unstable();
    writes.dedup_by_key(|(slot, _)| *slot);
}

impl CpuExecutor {
    /// Rejects an inconsistent step; otherwise prepares its write list, its read views and its
    /// resolved tokens.
    pub(crate) fn validate(&mut self, step: &Step) -> Result<(), StepError> {
        let (batch, plan) = (&step.batch, &step.plan);
        let ranks = self.ranks.as_ref().map_or(1, |ranks| ranks.count());
        self.model.program.check_ranks(ranks).map_err(failed)?;
        let replicas = self.expert_exchange.as_ref().map_or(1, |exchange| exchange.count());
        self.model.program.check_replicas(replicas).map_err(failed)?;
        step.check_sizes(self.limits.tokens)?;
        if self.is_encoder {
            step.check_whole_sequences()?;
        }
        self.check_states(step)?;
        step.check_window_sections(self.window_groups)?;
        self.check_rings(plan)?;
        self.writes.resize_with(1 + self.window_groups, Vec::new);
        self.memory.views.resize_with(1 + self.window_groups, Views::default);
        for group in 0..=self.window_groups {
            // A dummy step may lack window sections. It stores nothing, and its rows read nothing.
            let section = plan.section(GroupId(group as u8));
            let writes = &mut self.writes[group];
            writes.clear();
            if let Some(section) = section {
                check_writes(section, self.own.slots()[group])?;
                collect_writes(batch, section, writes);
            }
            self.memory.views[group].build_section(section.unwrap_or(&plan.full));
            self.check_reads(group)?;
        }
        self.collect_tokens(batch)
    }

    /// Checks the state rows and prepares the inputs of recurrent layers. A program without such
    /// layers ignores the plan's state section, because a draft model may run its target's plan.
    fn check_states(&mut self, step: &Step) -> Result<(), StepError> {
        if !self.model.program.is_recurrent() {
            return Ok(());
        }
        let Some(states) = &mut self.states else {
            return Err(failed("the executor has no pool of recurrent states".into()));
        };
        states.validator.check(step)?;
        states.inputs.clear();
        let section = &step.plan.states;
        for (at, row) in step.batch.rows.iter().enumerate() {
            let planned = section.rows.get(at).filter(|_| row.kind != RowKind::Dummy);
            let saves = planned.map_or(&[][..], |planned| &section.saves[planned.saves.range()]);
            states.inputs.push(row.tokens, planned, saves);
        }
        Ok(())
    }

    /// With ring buffers, rejects all but one causal sequence with consecutive positions, without
    /// copies or frozen prefixes and no longer than the rings allow.
    fn check_rings(&self, plan: &Plan) -> Result<(), StepError> {
        if !self.own.has_rings() {
            return Ok(());
        }
        let longest = self.limits.ring;
        let is_consecutive =
            plan.rows.len() <= 1 && plan.positions.is_sorted_by(|a, b| a.checked_add(1) == Some(*b));
        let own = plan.moves.is_empty() && plan.segments.iter().all(|segment| segment.pool.0 == 0);
        let causal = plan.rows.iter().all(|row| matches!(row.mask, Mask::None | Mask::Causal));
        let short = longest.is_some_and(|longest| plan.positions.len() <= longest as usize);
        if is_consecutive && own && causal && short {
            return Ok(());
        }
        let longest = longest.unwrap_or_default();
        let why = format!("ring buffers hold one causal sequence, of at most {longest} tokens per step");
        Err(failed(why))
    }

    /// Checks every slot that attention will read in a layer group against the size of its pool.
    fn check_reads(&self, group: usize) -> Result<(), StepError> {
        for run in &self.memory.views[group].runs {
            let pool = match run.pool {
                0 => Some(&self.own),
                id => self.frozen.get(id as usize - 1).and_then(Option::as_ref),
            };
            let slots = pool.map_or(0, |pool| pool.slots()[group]);
            let end = u64::from(run.slot) + u64::from(run.len);
            if end > u64::from(slots) {
                let (slot, pool) = (end - 1, run.pool);
                return Err(failed(format!("plan reads slot {slot}, but pool {pool} has {slots} slots")));
            }
        }
        Ok(())
    }

    /// Collects the step's tokens, with tokens in flight resolved, and which of them need logits.
    fn collect_tokens(&mut self, batch: &Batch) -> Result<(), StepError> {
        self.tokens.clear();
        self.final_lens.clear();
        self.second_text_starts.clear();
        self.sampled.clear();
        for row in &batch.rows {
            let Some(state) = self.rows.get(row.pool_row.0 as usize) else {
                return Err(failed(format!("no row {}", row.pool_row.0)));
            };
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.resolve(&batch.tokens[row.tokens.range()], &mut self.tokens) {
                return Err(failed("a token is in flight that was never sampled".into()));
            }
            self.final_lens.resize(self.tokens.len(), state.spec.final_len);
            if self.is_encoder {
                self.second_text_starts.resize(self.tokens.len(), state.spec.second_text_start);
            }
            self.sampled.extend(row.tokens.range().skip(row.logits_from() as usize));
        }
        let vocab = self.model.program.vocab;
        match self.tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(failed(format!("token {token} is outside the vocabulary of {vocab}"))),
            None => Ok(()),
        }
    }
}

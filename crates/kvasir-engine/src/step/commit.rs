//! Commits a finished step: retires its KV slots, appends sampled tokens, verifies drafts, applies
//! the stop rule and emits events; or undoes a step that failed or was not run.
//!
//! 1. `retire` ends the cache's lease of the step: its slots may be published, reused and freed.
//! 2. A row with one plain token of a sequence that does not stop takes the fast path
//!    `World::commit_decode`.
//! 3. Every other row goes through `end_row` → `commit_row`: prompt log-probabilities, hidden
//!    states, `verify` for speculative decoding, then `commit_outputs`.
//! 4. A failed step fails its sequences and those whose accepted-draft row moves it carried.
//!
//! Invariants: steps are postprocessed in the order they were scheduled. Results for a request that
//! has finished are dropped. A sequence preempted while its step was in flight keeps its sampled
//! token.

use crate::core::Core;
use crate::request::finish::{Fault, Finish};
use crate::request::ids::RequestId;
use crate::request::sequence::{Moves, Sequence, Status};
use crate::request::stop;
use crate::request::timings::Nanos;
use crate::scheduler::state::{PublishAt, World};
use kvasir_exec::{BatchRow, Phase, Step, StepError};
use kvasir_kv::{StepId, Token};
use kvasir_sample::accept;

/// Stores the prompt log-probabilities of the step's `i`-th row.
fn store_scores(sequence: &mut Sequence, i: usize, row: &BatchRow, step: &Step) {
    let before: u32 = step.batch.rows.iter().take(i).map(|row| row.scored.len).sum();
    let scores = step.output.scores.get(before as usize..(before + row.scored.len) as usize).unwrap_or(&[]);
    // A step scheduled before a preemption may repeat scores that are already stored.
    if sequence.cold.scores.len() as u32 == row.context_len - row.tokens.len + row.scored.start {
        sequence.cold.scores.extend_from_slice(scores);
    }
}

/// The hidden state (embedding) of the step's `i`-th row; empty if the executor returned none.
fn hidden(i: usize, step: &Step) -> &[f32] {
    let wanting = |rows: &[BatchRow]| rows.iter().filter(|row| row.wants_hidden()).count();
    let (before, all) = (wanting(step.batch.rows.get(..i).unwrap_or(&[])), wanting(&step.batch.rows));
    let width = step.output.hidden.len().checked_div(all).unwrap_or(0);
    step.output.hidden.get(before * width..(before + 1) * width).unwrap_or(&[])
}

/// Maps an executor error to the fault reported to clients.
fn fault(error: &StepError) -> Fault {
    match error {
        StepError::Failed(_) => Fault::Step,
        StepError::OutOfMemory(_) => Fault::OutOfMemory,
        StepError::Lost(_) => Fault::DeviceLost,
    }
}

impl World {
    /// Postprocess fast path: commits the one token of a decode row whose sequence does not stop.
    /// Returns false and changes nothing if any condition of the fast path fails.
    fn commit_decode(&mut self, row: &BatchRow, token: Token, step: StepId, now: Nanos) -> bool {
        let Some(sequence) = self.slab.get_mut(RequestId(row.request)) else { return false };
        let first = sequence.outputs_len();
        let continues_after = row.is_one_decode() && sequence.stops.continues_after(token, first + 1);
        if !continues_after || first == 0 || sequence.logprobs || sequence.cache != Some(row.seq) {
            return false;
        }
        sequence.steps_in_flight -= 1;
        sequence.in_flight -= 1;
        sequence.computed = sequence.computed.max(row.context_len);
        sequence.tokens.push(token);
        sequence.last_token = Some(now);
        self.outbox.push_one(sequence.id, sequence.tag, step, first, token);
        if self.publish_at == PublishAt::EveryBlock && sequence.computed >= sequence.published + self.block {
            self.publish(RequestId(row.request).index(), false);
        }
        true
    }
}

impl Core {
    /// Retires a step that has run, before its tokens are known: its K/V is valid and may be
    /// published. `Core::postprocess` does this itself if it was not called.
    pub fn landed(&mut self, step: &Step) {
        if !self.retire(step) {
            return;
        }
        for row in step.batch.rows.iter().filter(|row| row.drafts.count == 0) {
            if let Some(entry) = self.world.slab.find(RequestId(row.request))
                && self.world.slab[entry].cache == Some(row.seq)
            {
                self.world.slab[entry].computed = row.context_len;
                self.world.publish(entry, row.samples() && row.phase == Phase::Prefill);
            }
        }
    }

    /// Ends the step's lease in the cache. False if it was retired already.
    fn retire(&mut self, step: &Step) -> bool {
        if step.batch.step <= self.world.retired {
            return false;
        }
        self.world.retired = step.batch.step;
        if self.world.cache.room().leased > 0 {
            self.world.retained.note_change();
        }
        self.world.retained.note_step();
        let retired = self.world.cache.retire(step.batch.step);
        debug_assert!(retired.is_ok(), "{retired:?}");
        true
    }

    /// Commits the results of a step, or fails its sequences. Steps must come back in the order
    /// they were scheduled.
    pub fn postprocess(&mut self, step: &Step, result: &Result<(), StepError>, now: Nanos) {
        self.world.in_flight = self.world.in_flight.saturating_sub(1);
        self.retire(step);
        // Touched in one loop, so that the cache misses overlap.
        self.world.due.drain(..).for_each(|entry| self.world.slab[entry].tokens.touch_end());
        for (i, row) in step.batch.rows.iter().enumerate() {
            let token = if result.is_ok() { step.output.only_token(i) } else { None };
            if !token.is_some_and(|token| self.world.commit_decode(row, token, step.batch.step, now)) {
                self.end_row(i, row, step, result, now);
            }
        }
        if let Err(error) = result {
            self.fail_moved(step, error, now);
        }
        self.world.sweep_if_marked();
    }

    /// Slow path of one row: commits or fails it, and reaps a request that ended while the step was
    /// in flight.
    fn end_row(&mut self, i: usize, row: &BatchRow, step: &Step, result: &Result<(), StepError>, now: Nanos) {
        let Some(entry) = self.world.slab.find(RequestId(row.request)) else { return };
        let sequence = &mut self.world.slab[entry];
        sequence.steps_in_flight -= 1;
        if sequence.status == Status::Finished {
            self.world.release_row(entry);
            return self.world.reap(entry);
        }
        sequence.in_flight -= u32::from(row.samples());
        match result {
            Ok(()) => self.commit_row(entry, i, row, step, now),
            Err(error) => self.fail_row(entry, row, error, now),
        }
        self.world.release_row(entry);
    }

    /// Fails sequences whose row moves a failed step carried: the moves may not have been made.
    /// Such a sequence need not have a row in the step.
    fn fail_moved(&mut self, step: &Step, error: &StepError, now: Nanos) {
        for i in 0..self.world.running.len() {
            let entry = self.world.running[i];
            let sequence = &self.world.slab[entry];
            if sequence.status == Status::Running && sequence.moves == Moves::In(step.batch.step) {
                let first = sequence.outputs_len();
                self.world.finish(entry, Finish::Failed(fault(error)), None, first, now);
            }
        }
    }

    /// Fails a row's sequence unless it was preempted since.
    fn fail_row(&mut self, entry: u32, row: &BatchRow, error: &StepError, now: Nanos) {
        let sequence = &mut self.world.slab[entry];
        sequence.verifying = false;
        // A sequence preempted in the meantime lost nothing: it is recomputed anyway.
        if sequence.cache == Some(row.seq) {
            let first = sequence.outputs_len();
            self.world.finish(entry, Finish::Failed(fault(error)), None, first, now);
        }
    }

    /// Commits one row of a successful step: K/V progress, prompt log-probabilities, hidden state,
    /// sampled or verified tokens, stop rule, prefix publishing. A missing output fails the
    /// request.
    fn commit_row(&mut self, entry: u32, i: usize, row: &BatchRow, step: &Step, now: Nanos) {
        let sequence = &mut self.world.slab[entry];
        let owns = sequence.cache == Some(row.seq);
        if owns {
            sequence.computed = sequence.computed.max(row.context_len - row.drafts.count);
        }
        if row.scored.len > 0 {
            store_scores(sequence, i, row, step);
        }
        let milestone = row.samples() && row.phase == Phase::Prefill;
        if !row.samples() {
            self.world.publish(entry, false);
            return;
        }
        let span = step.output.rows.get(i).map(|out| out.tokens).unwrap_or_default();
        let sampled = step.output.tokens.get(span.range()).unwrap_or(&[]);
        let first = sequence.outputs_len();
        let width = (row.tokens.len - row.sample_from) as usize;
        // A device may decode several tokens by itself if no other step in flight feeds the
        // sequence.
        let several = row.drafts.count == 0 && sampled.len() > width && sequence.steps_in_flight == 0;
        if sampled.is_empty() || (sampled.len() != width && !several) {
            let fault = match sampled.is_empty() {
                true if step.output.broken.contains(&(i as u32)) => Fault::NotFinite,
                true if sequence.cold.params.constraint.0.is_some() => Fault::Constraint,
                _ => Fault::Internal,
            };
            self.world.finish(entry, Finish::Failed(fault), None, first, now);
            return;
        }
        if row.wants_hidden() && first == 0 {
            let state = hidden(i, step);
            if state.is_empty() {
                // The executor returned no hidden states.
                return self.world.finish(entry, Finish::Failed(Fault::Internal), None, 0, now);
            }
            self.world.outbox.hidden.push((self.world.outbox.events.len() as u32, state.to_vec()));
        }
        if row.drafts.count == 0 {
            sequence.append(sampled);
        } else if !self.verify(entry, row, step, sampled, owns) {
            self.world.finish(entry, Finish::Failed(Fault::Internal), None, first, now);
            return;
        }
        self.commit_outputs(entry, first, step, span.start, now);
        self.world.publish(entry, milestone);
    }

    /// Verifies drafts (speculative decoding): commits the accepted prefix or tree path plus the
    /// bonus token, and removes rejected drafts from the cache. False if the cache failed.
    fn verify(&mut self, entry: u32, row: &BatchRow, step: &Step, sampled: &[u32], owns: bool) -> bool {
        let count = row.drafts.count as usize;
        let fed = step.batch.tokens.get(row.tokens.range()).unwrap_or(&[]);
        let drafts = fed.get(fed.len().saturating_sub(count)..).unwrap_or(&[]);
        let parents = row.drafts.tree.and_then(|span| step.batch.parents.get(span.range()));
        self.accepted.clear();
        match parents {
            None => accept::chain(drafts, sampled, &mut self.accepted),
            Some(parents) => accept::tree(drafts, parents, sampled, &mut self.accepted),
        }
        self.stats.count(parents.map_or(count, crate::step::drafts::depth), self.accepted.len());
        let world = &mut self.world;
        let sequence = &mut world.slab[entry];
        sequence.verifying = false;
        sequence.drafts.clear();
        sequence.cold.parents.clear();
        // Node 0 is the newest committed token; the token sampled there is committed first.
        for node in std::iter::once(&0).chain(&self.accepted) {
            let token = sampled.get(*node as usize).copied();
            sequence.append(token.as_slice());
        }
        if !owns {
            return true;
        }
        let right = self.accepted.len() as u32;
        let length = row.context_len - row.drafts.count + right;
        sequence.claimed = length;
        sequence.computed = length;
        let resolved = match parents {
            None if (right as usize) < count => {
                world.cache.rewind().and_then(|face| face.rewind_to(row.seq, length))
            }
            None => Ok(()),
            Some(_) => {
                self.accepted.insert(0, 0);
                let moves =
                    world.cache.tree().and_then(|face| face.commit(row.seq, &self.accepted).map(<[_]>::len));
                if moves.as_ref().is_ok_and(|moves| *moves > 0) {
                    world.slab[entry].moves = Moves::Due;
                    world.moves_due = true;
                }
                moves.map(|_| ())
            }
        };
        world.budget.renew(&mut world.slab[entry]);
        resolved.is_ok()
    }

    /// Applies the stop rule to the outputs from `first` on and emits the event: a token delta or
    /// the end.
    fn commit_outputs(&mut self, entry: u32, first: u32, step: &Step, at: u32, now: Nanos) {
        let world = &mut self.world;
        let sequence = &mut world.slab[entry];
        let outputs = sequence.outputs_len();
        let stop =
            if first + 1 == outputs && sequence.stops.continues_after(sequence.tokens.newest(), outputs) {
                None
            } else {
                let outputs = sequence.tokens.since(sequence.prompt_len);
                stop::find(outputs, first as usize, &sequence.cold.params, sequence.cold.room)
            };
        let kept = stop.map_or(outputs, |stop| stop.keep as u32);
        if stop.is_some() {
            sequence.truncate(sequence.prompt_len + kept);
        }
        if kept > first {
            if first == 0 {
                sequence.cold.timings.first_token = Some(now);
            }
            sequence.last_token = Some(now);
        }
        if sequence.logprobs {
            let logprobs = step.output.logprobs.get(at as usize..).unwrap_or(&[]);
            let base = world.outbox.tokens.len() as u32;
            let logprobs = logprobs.iter().take(kept.saturating_sub(first) as usize).zip(base..);
            world.outbox.logprobs.extend(logprobs.filter_map(|(one, index)| Some((index, one.clone()?))));
        }
        if first == 0 && sequence.sampling.prompt_logprobs.is_some() && !sequence.cold.scores.is_empty() {
            let index = world.outbox.events.len() as u32;
            world.outbox.scores.push((index, std::mem::take(&mut sequence.cold.scores)));
        }
        match stop {
            Some(stop) => world.finish(entry, stop.finish, Some(step.batch.step), first, now),
            None => {
                let newest = [sequence.tokens.newest()];
                let new = match outputs - first {
                    1 => &newest,
                    _ => sequence.tokens.since(sequence.prompt_len + first),
                };
                world.outbox.push(sequence.id, sequence.tag, Some(step.batch.step), first, new, None);
            }
        }
    }

    /// Cancels the newest step, which was not run. Restores everything except admissions.
    pub fn cancel(&mut self, step: &Step) {
        let cancelled = self.world.cache.cancel(step.batch.step);
        debug_assert!(cancelled.is_ok(), "{cancelled:?}");
        self.world.retained.note_change();
        self.world.in_flight = self.world.in_flight.saturating_sub(1);
        let id = step.batch.step;
        for i in 0..self.world.running.len() {
            let entry = self.world.running[i];
            if self.world.slab[entry].moves == Moves::In(id) {
                self.world.slab[entry].moves = Moves::Due;
                self.world.moves_due = true;
            }
        }
        for row in step.batch.rows.iter().rev() {
            let Some(entry) = self.world.slab.find(RequestId(row.request)) else { continue };
            let sequence = &mut self.world.slab[entry];
            sequence.steps_in_flight -= 1;
            sequence.in_flight -= u32::from(row.samples());
            sequence.verifying = false;
            if sequence.cache == Some(row.seq) {
                sequence.claimed = row.cached;
                if sequence.ahead > 0 {
                    sequence.ahead = self.world.cache.take_ahead(row.seq, 0).unwrap_or(0);
                }
                if row.drafts.tree.is_some()
                    && let Ok(tree) = self.world.cache.tree()
                {
                    // The canceled tree must not be proposed again; the next decode proposes a new
                    // one.
                    let withdrawn = tree.propose(row.seq, &[]);
                    debug_assert!(withdrawn.is_ok(), "{withdrawn:?}");
                }
                self.world.set_prefilling(entry, row.phase == Phase::Prefill);
                self.world.budget.renew(&mut self.world.slab[entry]);
            }
            self.world.release_row(entry);
            self.world.reap(entry);
        }
    }

    /// Cancels the newest step, which the executor refused, and fails its sequences.
    pub fn reject(&mut self, step: &Step, error: &StepError, now: Nanos) {
        self.cancel(step);
        for row in &step.batch.rows {
            if let Some(entry) = self.world.slab.find(RequestId(row.request)) {
                self.fail_row(entry, row, error, now);
            }
        }
        self.world.sweep();
    }
}

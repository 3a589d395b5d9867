//! Commits a finished step: retires its KV slots, appends sampled tokens, verifies drafts, applies
//! the stop rule and emits events; or undoes a step that failed or was not run.
//!
//! 1. `retire` ends the cache's lease of the step: its slots may be published, reused and freed.
//! 2. A row with one plain token of a sequence that does not stop takes the fast path
//!    `commit_decode`.
//! 3. Every other row goes through `end_row` → `commit_row`: prompt log-probabilities, hidden
//!    states, `verify` for speculative decoding, then `commit_outputs`.
//! 4. A failed step fails its sequences and those whose slot copies it carried.
//!
//! Invariants: steps are postprocessed in the order they were scheduled. Results for a request that
//! has finished are dropped. A sequence preempted while its step was in flight keeps its sampled
//! token.

use crate::request::finish::{Fault, Finish};
use crate::request::ids::RequestId;
use crate::request::sequence::{Sequence, SlotCopies, Status};
use crate::request::stop;
use crate::request::timings::Nanos;
use crate::scheduler::state::SchedulerState;
use crate::speculation::control::SpeculationControl;
use crate::speculation::statistics::depth;
use kvasir_exec::{BatchRow, NO_TOKEN, RowKind, Step, StepError};
use kvasir_kv::{StepId, Token};

/// Stores the prompt log-probabilities of the step's `i`-th row.
fn store_scores(sequence: &mut Sequence, i: usize, row: &BatchRow, step: &Step) {
    let before: u32 = step.batch.rows.iter().take(i).map(|row| row.scored.len).sum();
    let scores = step.output.scores.get(before as usize..(before + row.scored.len) as usize).unwrap_or(&[]);
    // A step scheduled before a preemption may repeat scores that are already stored.
    if sequence.cold.scores.len() as u32 == row.context_len - row.tokens.len + row.scored.start {
        sequence.cold.scores.extend_from_slice(scores);
    }
}

/// Finishes the encoder request of the step's `i`-th row: emits its vector, and no token.
fn finish_encoder_request(state: &mut SchedulerState, entry: u32, i: usize, step: &Step, now: Nanos) {
    let hidden = hidden(i, step);
    let is_wanted = step.batch.rows.get(i).is_some_and(BatchRow::wants_hidden);
    let finish = match hidden {
        _ if step.output.broken.contains(&(i as u32)) => Finish::Failed(Fault::NotFinite),
        // The executor returned no vector, or the request did not set `Sampling::hidden`.
        [] => Finish::Failed(Fault::Internal),
        _ if !is_wanted => Finish::Failed(Fault::Internal),
        vector => {
            state.outbox.hidden.push((state.outbox.events.len() as u32, vector.to_vec()));
            Finish::Encoded
        }
    };
    state.finish_now(entry, finish, now);
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

/// Decode fast path: commits the one token of a decode row whose sequence does not stop. False, and
/// nothing changes, if any condition of the fast path fails.
#[inline]
fn commit_decode(state: &mut SchedulerState, row: &BatchRow, token: Token, step: StepId, now: Nanos) -> bool {
    let Some(sequence) = state.requests.get_mut(RequestId(row.request)) else { return false };
    let first = sequence.outputs_len();
    let continues = row.kind == RowKind::Decode && sequence.stops.continues_after(token, first + 1);
    if !continues
        || first == 0
        || sequence.logprobs
        || sequence.has_mirostat
        || sequence.cache != Some(row.seq)
    {
        return false;
    }
    sequence.steps_in_flight -= 1;
    sequence.in_flight -= 1;
    sequence.computed = sequence.computed.max(row.context_len);
    sequence.tokens.push(token);
    sequence.last_token = Some(now);
    state.outbox.push_one(sequence.id, sequence.tag, step, first, token);
    if state.kv.publishes_block(sequence) {
        state.kv.publish(sequence, false);
    }
    true
}

/// Commits or undoes steps, and verifies drafts.
#[derive(Debug, Default)]
pub(crate) struct StepCommitter {
    /// The newest retired step.
    retired: StepId,
    /// Accepted draft nodes of one row.
    accepted: Vec<u32>,
    /// Draft nodes at which the outputs of one row were sampled; empty for a row without drafts.
    path: Vec<u32>,
}

impl StepCommitter {
    /// Retires a step that has run, before its tokens are known.
    #[cfg(feature = "replay")]
    pub(crate) fn retire_early(&mut self, state: &mut SchedulerState, step: &Step) {
        if !self.retire(state, step) {
            return;
        }
        for row in step.batch.rows.iter().filter(|row| row.drafts.count == 0) {
            if let Some(entry) = state.requests.find(RequestId(row.request))
                && state.requests[entry].cache == Some(row.seq)
            {
                state.requests[entry].computed = row.context_len;
                state.publish(entry, row.samples() && row.kind.is_prefill());
            }
        }
    }

    /// Ends the step's lease in the cache. False if it was retired already.
    fn retire(&mut self, state: &mut SchedulerState, step: &Step) -> bool {
        let retires = step.batch.step > self.retired;
        if retires {
            self.retired = step.batch.step;
            state.kv.retire(step.batch.step);
        }
        retires
    }

    /// Commits the results of a step, or fails its sequences.
    pub(crate) fn postprocess(
        &mut self,
        (state, speculation): (&mut SchedulerState, &mut SpeculationControl),
        step: &Step,
        result: &Result<(), StepError>,
        now: Nanos,
    ) {
        state.steps_in_flight = state.steps_in_flight.saturating_sub(1);
        self.retire(state, step);
        state.requests.touch_spills();
        for (i, row) in step.batch.rows.iter().enumerate() {
            let token = if result.is_ok() { step.output.only_token(i) } else { None };
            if !token.is_some_and(|token| commit_decode(state, row, token, step.batch.step, now)) {
                self.end_row((state, speculation), i, row, step, result, now);
            }
        }
        if let Err(error) = result {
            fail_copies(state, step, error, now);
        }
        state.requests.sweep();
    }

    /// Slow path of one row: commits or fails it, and reaps a request that ended while the step was
    /// in flight.
    fn end_row(
        &mut self,
        (state, speculation): (&mut SchedulerState, &mut SpeculationControl),
        i: usize,
        row: &BatchRow,
        step: &Step,
        result: &Result<(), StepError>,
        now: Nanos,
    ) {
        let Some(entry) = state.requests.find(RequestId(row.request)) else { return };
        let sequence = &mut state.requests[entry];
        sequence.steps_in_flight -= 1;
        if sequence.status == Status::Finished {
            state.requests.release_row(entry);
            return state.requests.reap(entry);
        }
        sequence.in_flight -= u32::from(row.samples());
        match result {
            Ok(()) => self.commit_row((state, speculation), entry, i, step, now),
            Err(error) => fail_row(state, entry, row, error, now),
        }
        state.requests.release_row(entry);
    }

    /// Commits row `i` of a successful step: K/V progress, prompt log-probabilities, hidden state,
    /// sampled or verified tokens, stop rule, prefix publishing. A missing output fails the
    /// request.
    fn commit_row(
        &mut self,
        (state, speculation): (&mut SchedulerState, &mut SpeculationControl),
        entry: u32,
        i: usize,
        step: &Step,
        now: Nanos,
    ) {
        let Some(row) = step.batch.rows.get(i) else { return };
        let sequence = &mut state.requests[entry];
        let owns = sequence.cache == Some(row.seq);
        if owns {
            sequence.computed = sequence.computed.max(row.context_len - row.drafts.count);
        }
        if row.kind.is_prefill() && sequence.cold.params.prompt_progress && sequence.outputs_len() == 0 {
            state.outbox.progress.push((sequence.tag, sequence.computed.min(sequence.prompt_len)));
        }
        if row.scored.len > 0 {
            store_scores(sequence, i, row, step);
        }
        let milestone = row.samples() && row.kind.is_prefill();
        if !row.samples() {
            state.publish(entry, false);
            return;
        }
        let span = step.output.rows.get(i).map(|out| out.tokens).unwrap_or_default();
        let sampled = step.output.tokens.get(span.range()).unwrap_or(&[]);
        let first = sequence.outputs_len();
        if state.limits.bidirectional {
            return finish_encoder_request(state, entry, i, step, now);
        }
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
            return state.finish_now(entry, Finish::Failed(fault), now);
        }
        if row.wants_hidden() && first == 0 {
            let hidden = hidden(i, step);
            if hidden.is_empty() {
                // The executor returned no hidden states.
                return state.finish_now(entry, Finish::Failed(Fault::Internal), now);
            }
            state.outbox.hidden.push((state.outbox.events.len() as u32, hidden.to_vec()));
        }
        self.path.clear();
        if row.drafts.count == 0 {
            sequence.append(sampled);
        } else if !self.verify((state, speculation), entry, (i, row), step, sampled) {
            return state.finish(entry, Finish::Failed(Fault::Internal), None, first, now);
        }
        if let Some(outputs) = commit_outputs(state, entry, first, step, (span.start, &self.path), now) {
            speculation.observe_completion(outputs);
        }
        state.publish(entry, milestone);
        let newest = self.path.last().and_then(|node| sampled.get(*node as usize));
        let is_dead_end = newest == Some(&NO_TOKEN);
        if is_dead_end && state.requests[entry].status != Status::Finished {
            state.finish_now(entry, Finish::Failed(Fault::Constraint), now);
        }
    }

    /// Verifies drafts (speculative decoding): commits the accepted prefix or tree path plus the
    /// bonus token, if the constraint leaves one, and removes rejected drafts from the cache. False if
    /// the cache failed.
    fn verify(
        &mut self,
        (state, speculation): (&mut SchedulerState, &mut SpeculationControl),
        entry: u32,
        (i, row): (usize, &BatchRow),
        step: &Step,
        sampled: &[u32],
    ) -> bool {
        let count = row.drafts.count as usize;
        let parents = row.drafts.tree.and_then(|span| step.batch.parents.get(span.range()));
        self.accepted.clear();
        step.accepted(i, &mut self.accepted);
        let depth = parents.map_or(count, depth);
        speculation.record_verification(count, depth, self.accepted.len());
        let SchedulerState { requests, kv, .. } = state;
        let sequence = &mut requests[entry];
        let cold = &mut *sequence.cold;
        cold.drafted += count as u32;
        cold.accepted += self.accepted.len() as u32;
        cold.verified += 1;
        // A chain may have been cut to the outputs left.
        cold.drafts.truncate(count);
        speculation.observe_drafts(&cold.drafts, depth, &self.accepted, &mut cold.reliability);
        cold.drafts.clear();
        sequence.drafts = 0;
        sequence.verifying = false;
        // Node 0 is the newest committed token; the token sampled there is committed first.
        self.path.push(0);
        self.path.extend_from_slice(&self.accepted);
        for node in &self.path {
            let token = sampled.get(*node as usize).copied().filter(|token| *token != NO_TOKEN);
            sequence.append(token.as_slice());
        }
        if sequence.cache != Some(row.seq) {
            return true;
        }
        let right = self.accepted.len() as u32;
        let length = row.context_len - row.drafts.count + right;
        sequence.claimed = length;
        sequence.computed = length;
        let resolved = match parents {
            None if (right as usize) < count => kv
                .cache_mut()
                .rewind()
                .and_then(|capability| capability.rewind_to(row.seq, length + sequence.skipped))
                .map(|()| 0),
            None => Ok(0),
            Some(_) => kv
                .cache_mut()
                .tree()
                .and_then(|capability| capability.commit(row.seq, &self.path).map(<[_]>::len)),
        };
        kv.budget_mut().renew(sequence);
        if resolved.as_ref().is_ok_and(|copies| *copies > 0) {
            requests.copies_are_due(entry);
        }
        resolved.is_ok()
    }

    /// Undoes the newest step, which was not run. Restores everything except admissions.
    pub(crate) fn cancel(&mut self, state: &mut SchedulerState, step: &Step) {
        let id = step.batch.step;
        state.kv.cancel(id);
        state.steps_in_flight = state.steps_in_flight.saturating_sub(1);
        state.requests.recall_copies(id);
        let SchedulerState { requests, kv, .. } = state;
        for row in step.batch.rows.iter().rev() {
            let Some(entry) = requests.find(RequestId(row.request)) else { continue };
            let sequence = &mut requests[entry];
            sequence.steps_in_flight -= 1;
            sequence.in_flight -= u32::from(row.samples());
            sequence.verifying = false;
            if sequence.cache == Some(row.seq) {
                sequence.claimed = row.cached;
                if sequence.ahead > 0 {
                    sequence.ahead = kv.cache_mut().preallocate_slots(row.seq, 0).unwrap_or(0);
                }
                if row.drafts.tree.is_some() {
                    // The canceled tree must not be proposed again; the next decode proposes a new
                    // one.
                    kv.withdraw_tree(row.seq);
                }
                kv.budget_mut().renew(sequence);
                requests.set_prefilling(entry, row.kind.is_prefill());
            }
            requests.release_row(entry);
            requests.reap(entry);
        }
    }

    /// Undoes the newest step, which the executor refused, and fails its sequences.
    pub(crate) fn reject(&mut self, state: &mut SchedulerState, step: &Step, error: &StepError, now: Nanos) {
        self.cancel(state, step);
        for row in &step.batch.rows {
            if let Some(entry) = state.requests.find(RequestId(row.request)) {
                fail_row(state, entry, row, error, now);
            }
        }
        state.requests.sweep();
    }
}

/// Fails sequences whose slot copies a failed step carried: the copies may not have been made. Such
/// a sequence need not have a row in the step.
fn fail_copies(state: &mut SchedulerState, step: &Step, error: &StepError, now: Nanos) {
    for i in 0..state.requests.running().len() {
        let entry = state.requests.running()[i];
        let sequence = &state.requests[entry];
        if sequence.status == Status::Running && sequence.copies == SlotCopies::In(step.batch.step) {
            state.finish_now(entry, Finish::Failed(fault(error)), now);
        }
    }
}

/// Fails a row's sequence unless it was preempted since.
fn fail_row(state: &mut SchedulerState, entry: u32, row: &BatchRow, error: &StepError, now: Nanos) {
    let sequence = &mut state.requests[entry];
    sequence.verifying = false;
    // A sequence preempted in the meantime lost nothing: it is recomputed anyway.
    if sequence.cache == Some(row.seq) {
        state.finish_now(entry, Finish::Failed(fault(error)), now);
    }
}

/// Applies the stop rule to the outputs from `first` on and emits the event: a token delta or the
/// end. The row's sampled tokens begin at `at`; `path` are the draft nodes at which the outputs were
/// sampled, empty if all of the row's tokens are outputs. Returns the number of outputs if it ends.
fn commit_outputs(
    state: &mut SchedulerState,
    entry: u32,
    first: u32,
    step: &Step,
    (at, path): (u32, &[u32]),
    now: Nanos,
) -> Option<u32> {
    let SchedulerState { requests, outbox, .. } = state;
    let sequence = &mut requests[entry];
    let outputs = sequence.outputs_len();
    let stop = if first + 1 == outputs && sequence.stops.continues_after(sequence.tokens.newest(), outputs) {
        None
    } else {
        let (params, context_left) = (&sequence.cold.params, sequence.cold.context_left);
        match sequence.dropped {
            0 => stop::find(sequence.tokens.since(sequence.prompt_len), first as usize, params, context_left),
            _ => stop::find(&sequence.all_outputs(), first as usize, params, context_left),
        }
    };
    let kept = stop.map_or(outputs, |stop| stop.keep as u32);
    if stop.is_some() {
        sequence.tokens.truncate(sequence.index_of_output(kept));
        // Drafts behind the stop are no outputs; the last token of a verification is no draft.
        let behind = (outputs - kept).saturating_sub(1);
        sequence.cold.accepted = sequence.cold.accepted.saturating_sub(behind);
    }
    if kept > first {
        if first == 0 {
            sequence.cold.timings.first_token = Some(now);
        }
        sequence.last_token = Some(now);
    }
    if sequence.has_mirostat
        && let Some(mirostat) = &sequence.cold.mirostat
    {
        let mu = mirostat.after(kept as usize);
        outbox.mirostat.extend(mu.map(|mu| (outbox.events.len() as u32, mu)));
    }
    if sequence.logprobs {
        let base = outbox.tokens.len() as u32;
        for i in 0..kept.saturating_sub(first) {
            let sampled = at + path.get(i as usize).copied().unwrap_or(i);
            if let Some(Some(logprobs)) = step.output.logprobs.get(sampled as usize) {
                outbox.logprobs.push((base + i, logprobs.clone()));
            }
        }
    }
    if first == 0 && sequence.sampling.prompt_logprobs.is_some() && !sequence.cold.scores.is_empty() {
        let index = outbox.events.len() as u32;
        outbox.scores.push((index, std::mem::take(&mut sequence.cold.scores)));
    }
    let Some(stop) = stop else {
        let newest = [sequence.tokens.newest()];
        let new = match outputs - first {
            1 => &newest,
            _ => sequence.tokens.since(sequence.index_of_output(first)),
        };
        outbox.push(sequence.id, sequence.tag, Some(step.batch.step), first, new, None);
        return None;
    };
    if stop.finish == Finish::ModelLength && shift(state, entry, (first, kept), step.batch.step) {
        return None;
    }
    state.finish(entry, stop.finish, Some(step.batch.step), first, now);
    Some(kept)
}

/// Shifts the context of a request that has filled it, and emits its outputs from `first` to `kept`.
/// False, and nothing changes, if it does not shift.
fn shift(state: &mut SchedulerState, entry: u32, (first, kept): (u32, u32), step: StepId) -> bool {
    let sequence = &mut state.requests[entry];
    if sequence.cold.params.context_shift.is_none() {
        return false;
    }
    let from = sequence.index_of_output(first);
    let new = sequence.tokens.since(from).to_vec();
    debug_assert_eq!(new.len() as u32, kept - first);
    let (id, tag) = (sequence.id, sequence.tag);
    let shifts = state.shift(entry);
    if shifts {
        state.outbox.push(id, tag, Some(step), first, &new, None);
    }
    shifts
}

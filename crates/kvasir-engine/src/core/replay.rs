//! Operations that recorded cases apply to live requests between steps, for their replay
//! (`kvasir-conformance`): parameter changes, tokens from outside, truncation, and steps whose
//! tokens come early, by another path or never. Serving reaches none of them; they are compiled
//! with the feature `replay` only.
//!
//! Invariant: a running request was admitted with slots for its `max_tokens`, so that may only be
//! lowered. Guarded by `tests/replay.rs`.

use crate::core::Core;
use crate::request::finish::{Parameter, Refusal};
use crate::request::ids::RequestId;
use crate::request::params::Params;
use crate::request::sequence::Status;
use crate::request::stop::FastStop;
use crate::scheduler::state::SchedulerState;
use kvasir_exec::Step;
use kvasir_kv::Token;
use kvasir_sample::Sampling;

impl Core {
    /// Retires a step that has run, before its tokens are known: its K/V is valid and may be
    /// published. `Core::postprocess` does this itself if it was not called. Steps must be retired
    /// in the order they were scheduled.
    pub fn retire(&mut self, step: &Step) {
        self.committer.retire_early(&mut self.state, step);
    }

    /// Changes the stop conditions and sampling of a live request, from its next output on. Other
    /// parameters, the seed and the requested log-probabilities stay. While it runs, `max_tokens`
    /// can only be lowered. False if it has ended; on error nothing changes.
    pub fn change_params(
        &mut self,
        id: RequestId,
        change: impl FnOnce(&mut Params),
    ) -> Result<bool, Refusal> {
        let live = |entry: &u32| self.state.requests[*entry].status != Status::Finished;
        let Some(entry) = self.state.requests.find(id).filter(live) else { return Ok(false) };
        let sequence = &mut self.state.requests[entry];
        let mut new = sequence.cold.params.clone();
        change(&mut new);
        new.check()?;
        let runs = sequence.status == Status::Running;
        let before = sequence.outputs_left();
        let old = &mut sequence.cold.params;
        if runs && new.max_tokens > old.max_tokens {
            return Err(Refusal::BadParameter(Parameter::MaxTokens));
        }
        old.max_tokens = new.max_tokens;
        old.min_tokens = new.min_tokens;
        old.ignore_eos = new.ignore_eos;
        old.stop_ids = new.stop_ids;
        old.stop_sequences = new.stop_sequences;
        // Seed and reported outputs (log-probabilities, hidden state) are fixed at arrival.
        let Sampling { seed, logprobs, processed_logprobs, prompt_logprobs, hidden, .. } = old.sampling;
        old.sampling =
            Sampling { seed, logprobs, processed_logprobs, prompt_logprobs, hidden, ..new.sampling };
        sequence.sampling = old.sampling;
        sequence.amended = true;
        sequence.stops = FastStop::of(old, sequence.cold.context_left);
        if runs {
            let unused = before - self.state.requests[entry].outputs_left();
            self.state.requests.refund(entry, unused);
        }
        Ok(true)
    }

    /// Appends externally supplied tokens to a live request's outputs. They are fed before it
    /// decodes on and trigger no stop. False if it has ended or has a token in flight.
    pub fn append(&mut self, id: RequestId, tokens: &[Token]) -> bool {
        let Some(entry) = self.editable(id) else { return false };
        let sequence = &mut self.state.requests[entry];
        sequence.append(tokens);
        if sequence.status == Status::Running && sequence.to_feed() > 1 {
            self.state.requests.set_prefilling(entry, true);
        }
        true
    }

    /// Truncates a live request to `len` tokens; below the prompt length the prompt is shortened.
    /// Only its new last token is recomputed. False if it has ended, has a token in flight, or is
    /// shorter.
    pub fn truncate(&mut self, id: RequestId, len: u32) -> bool {
        let fits = |entry: &u32| (1..=self.state.requests[*entry].tokens.len()).contains(&len);
        let Some(entry) = self.editable(id).filter(fits) else { return false };
        let sequence = &mut self.state.requests[entry];
        sequence.prompt_len = sequence.prompt_len.min(len);
        sequence.truncate(len);
        sequence.cold.context_left =
            self.state.limits.max_model_len.saturating_sub(sequence.prompt_len).max(1);
        sequence.stops = FastStop::of(&sequence.cold.params, sequence.cold.context_left);
        if sequence.cache.is_some() && sequence.claimed >= len {
            self.state.kv.rewind(&mut self.state.requests[entry], len - 1);
        }
        true
    }

    /// The entry of a live request without a token in flight.
    fn editable(&self, id: RequestId) -> Option<u32> {
        let entry = self.state.requests.find(id)?;
        let sequence = &self.state.requests[entry];
        (sequence.status != Status::Finished && sequence.in_flight == 0).then_some(entry)
    }

    /// Removes the row of `id` from a step in flight, because its token will not come with the
    /// step. False if it has no row in the step.
    ///
    /// With `discard` the token never arrives: the request continues from its newest token, which
    /// is fed again, and must not be in a later step. Otherwise the caller commits the token with
    /// `Core::append`.
    pub fn remove_row(&mut self, step: &mut Step, id: RequestId, discard: bool) -> bool {
        let Some(i) = step.batch.rows.iter().position(|row| row.request == id.0) else { return false };
        let row = step.batch.rows.remove(i);
        let SchedulerState { requests, kv, .. } = &mut self.state;
        let Some(entry) = requests.find(id) else { return true };
        let sequence = &mut requests[entry];
        sequence.steps_in_flight -= 1;
        sequence.in_flight -= u32::from(row.samples());
        sequence.verifying = false;
        if discard && sequence.cache == Some(row.seq) && row.samples() {
            kv.rewind(sequence, sequence.tokens.len().saturating_sub(1));
        }
        requests.release_row(entry);
        requests.reap(entry);
        true
    }
}

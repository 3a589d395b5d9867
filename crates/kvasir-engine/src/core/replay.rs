//! Edits between steps. Of live requests: changing sampling and stop parameters, appending or
//! truncating tokens, and removing a row from a step whose token will not arrive. Of sessions:
//! forking, truncating and ending their retained K/V.
//!
//! Invariant: a running request was admitted with slots for its `max_tokens`, so that may only be
//! lowered. Guarded by `tests/amend.rs`.

use crate::core::Core;
use crate::request::finish::{Parameter, Refusal};
use crate::request::ids::{RequestId, SessionId};
use crate::request::params::Params;
use crate::request::sequence::{Sequence, Status};
use crate::request::stop::FastStop;
use crate::scheduler::kv_manager::KvManager;
use kvasir_exec::Step;
use kvasir_kv::Token;
use kvasir_sample::Sampling;

impl Core {
    /// Changes the stop conditions and sampling of a live request, from its next output on. Other
    /// parameters, the seed and the requested log-probabilities stay. While it runs, `max_tokens`
    /// can only be lowered. False if it has ended; on error nothing changes.
    pub fn change(&mut self, id: RequestId, change: impl FnOnce(&mut Params)) -> Result<bool, Refusal> {
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
        let Sampling { seed, logprobs, prompt_logprobs, hidden, .. } = old.sampling;
        old.sampling = Sampling { seed, logprobs, prompt_logprobs, hidden, ..new.sampling };
        sequence.sampling = old.sampling;
        sequence.amended = true;
        sequence.stops = FastStop::of(old, sequence.cold.room);
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
    pub fn cut(&mut self, id: RequestId, len: u32) -> bool {
        let fits = |entry: &u32| (1..=self.state.requests[*entry].tokens.len()).contains(&len);
        let Some(entry) = self.editable(id).filter(fits) else { return false };
        let sequence = &mut self.state.requests[entry];
        sequence.prompt_len = sequence.prompt_len.min(len);
        sequence.truncate(len);
        sequence.cold.room = self.state.limits.max_model_len.saturating_sub(sequence.prompt_len).max(1);
        sequence.stops = FastStop::of(&sequence.cold.params, sequence.cold.room);
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

    /// Removes the row of `id` from a step in flight whose token for it will never arrive. The
    /// request continues from its newest token, which is fed again; it must not be in a later step.
    /// False if it has no row in the step.
    pub fn withhold(&mut self, step: &mut Step, id: RequestId) -> bool {
        self.take_out(step, id, |kv, sequence| kv.rewind(sequence, sequence.tokens.len().saturating_sub(1)))
    }

    /// Removes the row of `id` from a step in flight whose token arrives by another path and is
    /// committed with `Core::append`. False if it has no row in the step.
    pub fn take_over(&mut self, step: &mut Step, id: RequestId) -> bool {
        self.take_out(step, id, |_, _| ())
    }

    /// Removes a row from a step. `no_token` handles a sequence that still owns its K/V and would
    /// have sampled a token.
    fn take_out(
        &mut self,
        step: &mut Step,
        id: RequestId,
        no_token: impl FnOnce(&mut KvManager, &mut Sequence),
    ) -> bool {
        let Some(i) = step.batch.rows.iter().position(|row| row.request == id.0) else { return false };
        let row = step.batch.rows.remove(i);
        let Some(entry) = self.state.requests.find(id) else { return true };
        let sequence = &mut self.state.requests[entry];
        sequence.steps_in_flight -= 1;
        sequence.in_flight -= u32::from(row.samples());
        sequence.verifying = false;
        if sequence.cache == Some(row.seq) && row.samples() {
            no_token(&mut self.state.kv, sequence);
        }
        self.state.requests.release_row(entry);
        self.state.requests.reap(entry);
        true
    }

    /// Retained tokens of a session; 0 while one of its requests runs.
    pub fn kept(&self, session: SessionId) -> u32 {
        self.state.kv.retained().len_of(session)
    }

    /// Forks a session without copying K/V: `into` starts with the first `at` retained tokens of
    /// `from`, in whole blocks; what `into` retained before is dropped. Returns the shared length,
    /// which may be 0, and reports it in the outbox.
    pub fn fork_session(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        let steps_in_flight = self.state.steps_in_flight;
        let (retained, cache) = self.state.kv.retained_mut();
        let len = retained.fork(cache, from, into, at, steps_in_flight);
        retained.report(into);
        len
    }

    /// Truncates a session's retained K/V to `to` tokens and reports the resulting length in the
    /// outbox.
    pub fn rewind_session(&mut self, session: SessionId, to: u32) {
        let (retained, cache) = self.state.kv.retained_mut();
        retained.truncate(cache, session, to);
        retained.report(session);
    }

    /// Ends a session: drops its retained K/V, and its running requests will retain nothing.
    pub fn end_session(&mut self, session: SessionId) {
        let (retained, cache) = self.state.kv.retained_mut();
        retained.evict(cache, session);
        retained.report(session);
        let requests = &mut self.state.requests;
        let of_it = |(entry, sequence): (u32, &Sequence)| {
            (sequence.cold.params.session == Some(session)).then_some(entry)
        };
        let entries: Vec<u32> = requests.iter().filter_map(of_it).collect();
        entries.into_iter().for_each(|entry| requests[entry].cold.params.session = None);
    }
}

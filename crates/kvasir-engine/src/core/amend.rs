//! Edits of live requests: changing sampling and stop parameters, appending or truncating tokens,
//! and removing a row from a step whose token will not arrive.
//!
//! Invariant: a running request was admitted with slots for its `max_tokens`, so that may only be
//! lowered. Guarded by `tests/amend.rs`.

use crate::core::Core;
use crate::request::finish::{Parameter, Refusal};
use crate::request::ids::RequestId;
use crate::request::params::Params;
use crate::request::sequence::Status;
use crate::request::stop::FastStop;
use crate::scheduler::state::World;
use kvasir_exec::Step;
use kvasir_kv::Token;
use kvasir_sample::Sampling;

impl Core {
    /// Changes the stop conditions and sampling of a live request, from its next output on. Other
    /// parameters, the seed and the requested log-probabilities stay. While it runs, `max_tokens`
    /// can only be lowered. False if it has ended; on error nothing changes.
    pub fn change(&mut self, id: RequestId, change: impl FnOnce(&mut Params)) -> Result<bool, Refusal> {
        let live = |entry: &u32| self.world.slab[*entry].status != Status::Finished;
        let Some(entry) = self.world.slab.find(id).filter(live) else { return Ok(false) };
        let sequence = &mut self.world.slab[entry];
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
        let key = old.key;
        if runs {
            let unused = before - self.world.slab[entry].outputs_left();
            self.world.queue.refund(key, unused);
        }
        Ok(true)
    }

    /// Appends externally supplied tokens to a live request's outputs. They are fed before it
    /// decodes on and trigger no stop. False if it has ended or has a token in flight.
    pub fn append(&mut self, id: RequestId, tokens: &[Token]) -> bool {
        let Some(entry) = self.editable(id) else { return false };
        let sequence = &mut self.world.slab[entry];
        sequence.append(tokens);
        if sequence.status == Status::Running && sequence.to_feed() > 1 {
            self.world.set_prefilling(entry, true);
        }
        true
    }

    /// Truncates a live request to `len` tokens; below the prompt length the prompt is shortened.
    /// Only its new last token is recomputed. False if it has ended, has a token in flight, or is
    /// shorter.
    pub fn cut(&mut self, id: RequestId, len: u32) -> bool {
        let fits = |entry: &u32| (1..=self.world.slab[*entry].tokens.len()).contains(&len);
        let Some(entry) = self.editable(id).filter(fits) else { return false };
        let sequence = &mut self.world.slab[entry];
        sequence.prompt_len = sequence.prompt_len.min(len);
        sequence.truncate(len);
        sequence.cold.room = self.world.limits.max_model_len.saturating_sub(sequence.prompt_len).max(1);
        sequence.stops = FastStop::of(&sequence.cold.params, sequence.cold.room);
        if sequence.cache.is_some() && sequence.claimed >= len {
            self.world.rewind(entry, len - 1);
        }
        true
    }

    /// The entry of a live request without a token in flight.
    fn editable(&self, id: RequestId) -> Option<u32> {
        let entry = self.world.slab.find(id)?;
        let sequence = &self.world.slab[entry];
        (sequence.status != Status::Finished && sequence.in_flight == 0).then_some(entry)
    }

    /// Removes the row of `id` from a step whose token for it will never arrive. The request
    /// continues from its newest token, which is fed again; it must not be in a later step. False
    /// if it has no row in the step.
    pub fn withhold(&mut self, step: &mut Step, id: RequestId) -> bool {
        self.take_out(step, id, |world, entry| {
            let len = world.slab[entry].tokens.len();
            world.rewind(entry, len.saturating_sub(1));
        })
    }

    /// Removes the row of `id` from a step whose token arrives by another path and is committed
    /// with `Core::append`. False if it has no row in the step.
    pub fn take_over(&mut self, step: &mut Step, id: RequestId) -> bool {
        self.take_out(step, id, |_, _| ())
    }

    /// Removes a row from a step. `no_token` handles a sequence that still owns its K/V and would
    /// have sampled a token.
    fn take_out(&mut self, step: &mut Step, id: RequestId, no_token: impl FnOnce(&mut World, u32)) -> bool {
        let Some(i) = step.batch.rows.iter().position(|row| row.request == id.0) else { return false };
        let row = step.batch.rows.remove(i);
        let Some(entry) = self.world.slab.find(id) else { return true };
        let sequence = &mut self.world.slab[entry];
        sequence.steps_in_flight -= 1;
        sequence.in_flight -= u32::from(row.samples());
        sequence.verifying = false;
        if sequence.cache == Some(row.seq) && row.samples() {
            no_token(&mut self.world, entry);
        }
        self.world.release_row(entry);
        self.world.reap(entry);
        true
    }
}

impl World {
    /// Rewinds a running sequence to `len` tokens of K/V and renews its reservation.
    fn rewind(&mut self, entry: u32, len: u32) {
        let sequence = &mut self.slab[entry];
        sequence.claimed = len;
        sequence.computed = sequence.computed.min(len);
        sequence.published = sequence.published.min(len / self.block * self.block);
        if let Some(seq) = sequence.cache {
            let rewound = self.cache.rewind().and_then(|face| face.rewind_to(seq, len));
            debug_assert!(rewound.is_ok(), "{rewound:?}");
        }
        self.budget.renew(&mut self.slab[entry]);
    }
}

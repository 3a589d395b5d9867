//! What the caller changes of a request that is here, and tokens of a step that never come.

use crate::{Core, Parameter, Params, Refusal, RequestId, Status, stop::Plain};
use kvasir_exec::Step;
use kvasir_sample::Sampling;

impl Core {
    /// Changes what ends a request and how it is drawn, from its next output on; the rest of its parameters stays. One that runs was
    /// given room for its cap, so that can only be lowered. False if it has ended.
    pub fn change(&mut self, id: RequestId, change: impl FnOnce(&mut Params)) -> Result<bool, Refusal> {
        let live = |entry: &u32| self.world.slab[*entry].status != Status::Finished;
        let Some(entry) = self.world.slab.find(id).filter(live) else { return Ok(false) };
        let sequence = &mut self.world.slab[entry];
        let mut new = sequence.rest.params.clone();
        change(&mut new);
        new.check()?;
        let runs = sequence.status == Status::Running;
        let before = sequence.outputs_left();
        let old = &mut sequence.rest.params;
        if runs && new.max_tokens > old.max_tokens {
            return Err(Refusal::BadParameter(Parameter::MaxTokens));
        }
        old.max_tokens = new.max_tokens;
        old.min_tokens = new.min_tokens;
        old.ignore_eos = new.ignore_eos;
        old.stop_ids = new.stop_ids;
        old.stop_sequences = new.stop_sequences;
        // What is reported of its tokens was settled when it was added, and so was its noise.
        let Sampling { seed, logprobs, prompt_logprobs, hidden, .. } = old.sampling;
        old.sampling = Sampling { seed, logprobs, prompt_logprobs, hidden, ..new.sampling };
        sequence.sampling = old.sampling;
        sequence.amended = true;
        sequence.stops = Plain::of(old, sequence.rest.room);
        let key = old.key;
        if runs {
            let unused = before - self.world.slab[entry].outputs_left();
            self.world.queue.refund(key, unused);
        }
        Ok(true)
    }

    /// Takes the row of `id` out of a step whose token for it will never come. It goes on from its newest token, which is fed again; it
    /// must not be in a later step. False if the step has no row of it.
    pub fn withhold(&mut self, step: &mut Step, id: RequestId) -> bool {
        let Some(i) = step.batch.rows.iter().position(|row| row.request == id.0) else { return false };
        let row = step.batch.rows.remove(i);
        let Some(entry) = self.world.slab.find(id) else { return true };
        let sequence = &mut self.world.slab[entry];
        sequence.steps_in_flight -= 1;
        sequence.in_flight -= u32::from(row.samples());
        sequence.verifying = false;
        if sequence.cache == Some(row.seq) && row.samples() {
            let len = sequence.tokens.len().saturating_sub(1);
            sequence.claimed = len;
            sequence.computed = sequence.computed.min(len);
            sequence.published = sequence.published.min(len / self.world.block * self.world.block);
            let rewound = self.world.cache.rewind().and_then(|face| face.rewind_to(row.seq, len));
            debug_assert!(rewound.is_ok(), "{rewound:?}");
            self.world.renew_promise(entry);
        }
        self.world.release_row(entry);
        self.world.bury(entry);
        true
    }
}

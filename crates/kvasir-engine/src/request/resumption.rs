//! What a request has generated in another engine before it continues in this one.
//!
//! A resumed request is in the state of a preempted one: its outputs are part of its tokens and are
//! computed again, its noise goes on at the next position, and its constraint, penalties and stop
//! sequences see the outputs. So its tokens are those that the other engine would have sampled.
//!
//! Guarded by `tests/resumption.rs`.

use crate::request::sequence::Sequence;
use crate::request::stop::FastStop;
use crate::request::timings::Timings;
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};

/// The state of a request that another engine ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resumption {
    /// Its outputs; none of them ended it.
    pub outputs: Vec<Token>,
    /// Mirostat's `mu` after them, if the request has Mirostat: it does not follow from the tokens.
    pub mu: Option<f32>,
    /// Its prompt tokens that were served from the KV cache when it was first admitted.
    pub cached: u32,
    /// When it arrived, was admitted, and had its first token.
    pub timings: Timings,
}

impl Sequence {
    /// Takes over the state of a request that another engine ran. `context` is the number of tokens
    /// that its context may have. Cost: linear in the outputs.
    pub(crate) fn resume(&mut self, resumption: &Resumption, context: u32) {
        for token in &resumption.outputs {
            self.append(&[*token]);
            // The other engine shifted the context where it was full.
            if self.outputs_len() >= self.cold.context_left && self.drop_half(context) {
                self.fit_context(context);
            }
        }
        if let (Some(mirostat), Some(mu)) = (&self.cold.mirostat, resumption.mu) {
            mirostat.resume(resumption.outputs.len(), mu);
        }
        let last_token = self.cold.timings.last_token.or(resumption.timings.last_token);
        self.cold.timings = Timings { finished: None, last_token, ..resumption.timings };
        self.cold.first_hit = resumption.cached;
    }

    /// Sets how many outputs fit a context of this many tokens.
    pub(crate) fn fit_context(&mut self, context: u32) {
        let left = context.saturating_sub(self.tokens.len()).max(1);
        self.cold.context_left = self.outputs_len() + left;
        self.stops = FastStop::of(&self.cold.params, self.cold.context_left);
    }
}

//! Request events and the outbox: token deltas, finish reasons, log-probabilities, hidden states
//! and request summaries with TTFT and TPOT.
//!
//! Invariants: the events of a request arrive in order, and its last event, and no other, has
//! `finish` set. The outbox keeps its memory when cleared.

use crate::{Finish, Nanos, RequestId, Sequence, SessionId, Timings};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::{Span, StepId, Token};
use serde::{Deserialize, Serialize};

/// Something that its client must hear about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// The caller's own number for it.
    pub tag: u64,
    /// The step that made the tokens; none for an ending without a step.
    pub step: Option<StepId>,
    /// Index of the first new token among the request's outputs.
    pub first: u32,
    /// New tokens in [`Outbox::tokens`]; may be none.
    pub tokens: Span,
    /// Set on the request's last event.
    pub finish: Option<Finish>,
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The request.
    pub request: RequestId,
    /// The caller's own number for it.
    pub tag: u64,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens that it yielded.
    pub outputs: u32,
    /// Tokens of its prompt that were in the cache already.
    pub cached: u32,
    /// How often it was preempted.
    pub preemptions: u32,
    /// When what happened.
    pub timings: Timings,
}

impl Summary {
    /// Of a request of which nothing is known yet.
    pub(crate) fn blank(request: RequestId, finish: Finish) -> Self {
        let timings = Timings::default();
        Self { request, tag: 0, finish, prompt: 0, outputs: 0, cached: 0, preemptions: 0, timings }
    }

    pub(crate) fn of(sequence: &Sequence, finish: Finish) -> Self {
        Self {
            request: sequence.id,
            tag: sequence.tag,
            finish,
            prompt: sequence.prompt_len,
            outputs: sequence.outputs_len(),
            cached: sequence.rest.first_hit,
            preemptions: sequence.rest.preemptions,
            timings: sequence.rest.timings,
        }
    }

    /// Time to the first token.
    pub fn ttft(&self) -> Option<Nanos> {
        Some(self.timings.first_token?.saturating_sub(self.timings.arrived))
    }

    /// Time from the first output token to the last.
    pub fn spoke(&self) -> Option<Nanos> {
        Some(self.timings.last_token?.saturating_sub(self.timings.first_token?))
    }

    /// Time per output token after the first.
    pub fn tpot(&self) -> Option<Nanos> {
        self.spoke()?.checked_div(u64::from(self.outputs.checked_sub(1)?))
    }
}

/// Events since it was last emptied, in order, with their tokens. Its memory is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outbox {
    /// The events.
    pub events: Vec<Event>,
    /// The tokens of all events.
    pub tokens: Vec<Token>,
    /// How those went whose last event is among them.
    pub ended: Vec<Summary>,
    /// Log-probabilities of `tokens` by index, for those requests that asked.
    pub logprobs: Vec<(u32, TokenLogprobs)>,
    /// How many tokens of a session are in the cache while none of its requests runs, each time that changed.
    pub kept: Vec<(SessionId, u32)>,
    /// Log-probabilities of prompts' tokens from the second on, by index of the event that they come with.
    pub scores: Vec<(u32, Vec<TokenLogprobs>)>,
    /// Hidden states of prompts' last tokens, by index of the event that they come with.
    #[serde(default)]
    pub hidden: Vec<(u32, Vec<f32>)>,
}

impl Outbox {
    /// Empties it.
    pub fn clear(&mut self) {
        self.events.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.scores.clear();
        self.hidden.clear();
        self.ended.clear();
        self.kept.clear();
    }

    /// Whether there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.kept.is_empty()
    }

    /// Each event with its tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&Event, &[Token])> {
        self.events.iter().map(|event| (event, self.tokens.get(event.tokens.range()).unwrap_or(&[])))
    }

    /// One token of a request that goes on.
    #[inline]
    pub(crate) fn push_one(&mut self, request: RequestId, tag: u64, step: StepId, first: u32, new: Token) {
        let tokens = Span::new(self.tokens.len(), 1);
        self.tokens.push(new);
        self.events.push(Event { request, tag, step: Some(step), first, tokens, finish: None });
    }

    pub(crate) fn push(
        &mut self,
        request: RequestId,
        tag: u64,
        step: Option<StepId>,
        first: u32,
        new: &[Token],
        finish: Option<Finish>,
    ) {
        let tokens = Span::new(self.tokens.len(), new.len());
        self.tokens.extend_from_slice(new);
        self.events.push(Event { request, tag, step, first, tokens, finish });
    }
}

//! Request events and the outbox: token deltas, finish reasons, log-probabilities, hidden states
//! and request summaries with TTFT and TPOT.
//!
//! Invariants: the events of a request arrive in order, and its last event, and no other, has
//! `finish` set. The outbox keeps its memory when cleared.

use crate::request::finish::Finish;
use crate::request::ids::{RequestId, SessionId};
use crate::request::kv_transfer::ImportCounts;
use crate::request::prefix_match::{FirstAdmission, PrefixMatch};
use crate::request::sequence::Sequence;
use crate::request::timings::{Nanos, Timings};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::{KvEvent, Span, StepId, Token};
use serde::{Deserialize, Serialize};

/// One event of a request: new tokens, its end, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// The caller's tag.
    pub tag: u64,
    /// The step that sampled the tokens; none if the request ended outside a step.
    pub step: Option<StepId>,
    /// Index of the first new token among the request's outputs; equals the number of tokens
    /// delivered before.
    pub first: u32,
    /// Range of new tokens in [`Outbox::tokens`]; may be empty.
    pub tokens: Span,
    /// Finish reason; set on the request's last event only.
    pub finish: Option<Finish>,
}

/// Final statistics of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The request.
    pub request: RequestId,
    /// The caller's tag.
    pub tag: u64,
    /// Finish reason.
    pub finish: Finish,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens.
    pub outputs: u32,
    /// Prompt tokens served from the KV cache at its first admission.
    pub cached: u32,
    /// How many prompt tokens matched cached K/V at the first admission, and why the match ended
    /// there.
    #[serde(default)]
    pub prefix: PrefixMatch,
    /// Tokens that context shifts have dropped.
    #[serde(default)]
    pub dropped: u32,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Drafts that were verified.
    #[serde(default)]
    pub drafted: u32,
    /// Drafts that became outputs: accepted, and not behind a stop.
    #[serde(default)]
    pub accepted: u32,
    /// Steps that verified drafts.
    #[serde(default)]
    pub verified: u32,
    /// Lifecycle timestamps.
    pub timings: Timings,
}

impl Summary {
    /// A summary with all counts zero and without times, for a request that no engine has run. Uses
    /// `tag` as the request id.
    pub fn empty(tag: u64, finish: Finish) -> Self {
        Self {
            request: RequestId(tag),
            tag,
            finish,
            prompt: 0,
            outputs: 0,
            cached: 0,
            prefix: PrefixMatch::NONE,
            dropped: 0,
            preemptions: 0,
            drafted: 0,
            accepted: 0,
            verified: 0,
            timings: Timings::default(),
        }
    }

    pub(crate) fn of(sequence: &Sequence, finish: Finish) -> Self {
        Self {
            request: sequence.id,
            tag: sequence.tag,
            finish,
            prompt: sequence.prompt_len,
            outputs: sequence.outputs_len(),
            cached: sequence.cold.first_hit,
            prefix: sequence.cold.prefix,
            dropped: sequence.dropped,
            preemptions: sequence.cold.preemptions,
            drafted: sequence.cold.drafted,
            accepted: sequence.cold.accepted,
            verified: sequence.cold.verified,
            timings: sequence.cold.timings,
        }
    }

    /// TTFT: arrival to first token.
    pub fn ttft(&self) -> Option<Nanos> {
        Some(self.timings.first_token?.saturating_sub(self.timings.arrived))
    }

    /// Decode time: first output token to last.
    pub fn decode_time(&self) -> Option<Nanos> {
        Some(self.timings.last_token?.saturating_sub(self.timings.first_token?))
    }

    /// TPOT: mean time per output token after the first; none for a single token.
    pub fn tpot(&self) -> Option<Nanos> {
        self.decode_time()?.checked_div(u64::from(self.outputs.checked_sub(1)?))
    }
}

/// An event with its tokens, log-probabilities and statistics, borrowed from the outbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventOutput<'a> {
    /// The event.
    pub event: &'a Event,
    /// Its new tokens.
    pub tokens: &'a [Token],
    /// Log-probabilities of its tokens, by index into [`Outbox::tokens`]; empty if the request does
    /// not want them.
    pub logprobs: &'a [(u32, TokenLogprobs)],
    /// Prompt log-probabilities from the second token on, with the first event of requests that want
    /// them.
    pub scores: &'a [TokenLogprobs],
    /// Hidden state of the prompt's last token, for requests that want it.
    pub hidden: &'a [f32],
    /// Final statistics, with the request's last event.
    pub summary: Option<&'a Summary>,
}

/// Pops the first element of a slice, if it satisfies `is_next`.
fn take_first<'a, T>(list: &mut &'a [T], is_next: impl FnOnce(&T) -> bool) -> Option<&'a T> {
    if list.first().is_some_and(is_next) { list.split_off_first() } else { None }
}

/// Events since the last `clear`, in order, with their tokens. Its memory is reused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outbox {
    /// Events in order.
    pub events: Vec<Event>,
    /// The tokens of all events.
    pub tokens: Vec<Token>,
    /// Summaries of the requests whose final event is among `events`.
    pub ended: Vec<Summary>,
    /// Log-probabilities by index into `tokens`, for requests that want them.
    pub logprobs: Vec<(u32, TokenLogprobs)>,
    /// Requests that were admitted for the first time.
    #[serde(default)]
    pub admitted: Vec<FirstAdmission>,
    /// Prefill progress of requests with `Params::prompt_progress`: request tag, prompt tokens
    /// whose K/V is written.
    #[serde(default)]
    pub progress: Vec<(u64, u32)>,
    /// Mirostat's `mu` after the newest output of each request that uses Mirostat, with the index
    /// of its event in `events`.
    #[serde(default)]
    pub mirostat: Vec<(u32, f32)>,
    /// Retained K/V length of sessions, each time it changed.
    pub retained: Vec<(SessionId, u32)>,
    /// Prompt log-probabilities from the second token on, by index into `events`.
    pub scores: Vec<(u32, Vec<TokenLogprobs>)>,
    /// Hidden states (embeddings) of prompts' last tokens, by index into `events`.
    #[serde(default)]
    pub hidden: Vec<(u32, Vec<f32>)>,
    /// Changes of the prefix cache, in order, if [`Core::record_kv_events`](crate::Core::record_kv_events)
    /// was called.
    #[serde(default)]
    pub kv_events: Vec<KvEvent>,
    /// Outcomes of imports of K/V blocks.
    #[serde(default)]
    pub imports: ImportCounts,
}

impl Outbox {
    /// Drops all events and keeps the memory.
    pub fn clear(&mut self) {
        self.events.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.scores.clear();
        self.hidden.clear();
        self.ended.clear();
        self.admitted.clear();
        self.progress.clear();
        self.mirostat.clear();
        self.retained.clear();
        self.kv_events.clear();
        self.imports = ImportCounts::default();
    }

    /// Whether there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.admitted.is_empty()
            && self.progress.is_empty()
            && self.retained.is_empty()
            && self.kv_events.is_empty()
            && self.imports.handled == 0
    }

    /// Iterates over the events with their tokens, log-probabilities and statistics.
    pub fn iter(&self) -> impl Iterator<Item = EventOutput<'_>> {
        // Each list is sorted by event, and each entry identifies its event.
        let (mut logprobs, mut scores, mut hidden, mut ended) =
            (&self.logprobs[..], &self.scores[..], &self.hidden[..], &self.ended[..]);
        self.events.iter().enumerate().map(move |(index, event)| {
            let range = event.tokens.range();
            let own = logprobs.partition_point(|(token, _)| (*token as usize) < range.end);
            EventOutput {
                event,
                tokens: self.tokens.get(range).unwrap_or(&[]),
                logprobs: logprobs.split_off(..own).unwrap_or(&[]),
                scores: take_first(&mut scores, |(at, _)| *at as usize == index)
                    .map_or(&[], |(_, list)| list),
                hidden: take_first(&mut hidden, |(at, _)| *at as usize == index)
                    .map_or(&[], |(_, state)| state),
                summary: event
                    .finish
                    .and_then(|_| take_first(&mut ended, |summary| summary.request == event.request)),
            }
        })
    }

    /// Fast path: one token of a request that continues.
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

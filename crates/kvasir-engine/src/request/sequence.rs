//! One request's state in the scheduler: committed tokens, KV progress, tokens in flight, drafts,
//! status and timings.
//!
//! `computed <= claimed <= tokens + in_flight`
//!
//! - `computed`: tokens whose K/V is in the cache; every step that wrote them has retired.
//! - `claimed`: tokens that have KV slots, including those of steps in flight.
//! - `tokens`: what the host has seen and the target model has chosen. No placeholders, no drafts.
//!
//! Layout: hot fields fill whole cache lines in `Sequence`, cold fields are boxed in `Cold`. At
//! thousands of rows a step is bound by memory latency, so a new field must be placed deliberately
//! (`benches/step.rs`).

pub(crate) mod context_shift;
pub(crate) mod resume;

use crate::request::finish::Finish;
use crate::request::gaps::Gaps;
use crate::request::ids::RequestId;
use crate::request::params::{Params, Request};
use crate::request::prefix_match::PrefixMatch;
use crate::request::proposal::Proposal;
use crate::request::sequence::context_shift::ContextShift;
use crate::request::stop::FastStop;
use crate::request::timings::{Nanos, Timings};
use kvasir_exec::{PoolRow, TokenLogprobs};
use kvasir_kv::{SeqId, StepId, TailBuffered, Token};
use kvasir_sample::{MirostatState, Sampling};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Request states: Waiting → Running → Finished; preemption returns Running → Waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// In the queue; owns no KV slots.
    #[default]
    Waiting,
    /// Admitted; owns a cache sequence and an executor row.
    Running,
    /// Ended; kept until no step in flight names it.
    Finished,
}

/// State of the slot copies that bring the K/V of a sequence's accepted tree drafts into place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SlotCopies {
    #[default]
    None,
    /// Carried by the next step, whichever sequences it has.
    Due,
    /// Carried by this step, which is in flight.
    In(StepId),
}

/// One request's tokens, parameters, status and timings.
///
/// Committed tokens, tokens in flight and drafts are kept apart: the token list holds only tokens
/// that the host has seen and the target model has chosen.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub struct Sequence {
    // Hot fields, one cache line per paragraph; cold fields are in `Cold`. With thousands of
    // requests a step is bound by memory latency.
    pub(crate) id: RequestId,
    /// Its cache sequence while it runs.
    pub(crate) cache: Option<SeqId>,
    /// Number of the newest scheduling attempt that scheduled or deferred it.
    pub(crate) attempt: u64,
    pub(crate) prompt_len: u32,
    /// Tokens with KV slots, including those that steps in flight will write.
    pub(crate) claimed: u32,
    /// Tokens whose K/V is written: every step that wrote them has retired.
    pub(crate) computed: u32,
    /// Tokens sampled by steps in flight.
    pub(crate) in_flight: u32,
    /// Steps in flight that name it.
    pub(crate) steps_in_flight: u32,
    /// Slots reserved and not yet claimed.
    pub(crate) reserved: u32,
    /// Length up to which it holds slots allocated ahead of claims; 0 if none.
    pub(crate) ahead: u32,
    /// Tokens published to the prefix cache.
    pub(crate) published: u32,

    /// Compact stop conditions for the decode fast path.
    pub(crate) stops: FastStop,
    pub(crate) pool_row: Option<PoolRow>,
    pub(crate) status: Status,
    /// In prefill: no step that feeds its last known token has been scheduled since admission.
    pub(crate) prefilling: bool,
    /// A step in flight verifies its drafts.
    pub(crate) verifying: bool,
    /// Log-probabilities of outputs are wanted.
    pub(crate) logprobs: bool,
    /// Whether `cold.mirostat` is set.
    pub(crate) has_mirostat: bool,
    /// Copy of `Params::serial`.
    pub(crate) serial: bool,
    /// Its parameters were changed since it was added, so cached batch rows are stale.
    pub(crate) amended: bool,
    /// Positions that were cut out of its session before its newest tokens: `cold.gaps`, all together.
    pub(crate) skipped: u32,
    /// Tokens that context shifts have dropped: `cold.shift.dropped`.
    pub(crate) dropped: u32,
    /// Prompt, then committed outputs, without what was dropped. The newest of them are stored inline
    /// in the next two cache lines.
    pub(crate) tokens: TailBuffered,
    pub(crate) cold: Box<Cold>,

    pub(crate) tag: u64,
    /// When its newest output was committed; copied to `timings` when it ends.
    pub(crate) last_token: Option<Nanos>,
    pub(crate) copies: SlotCopies,
    /// Number of drafts that its next decode may verify.
    pub(crate) drafts: u32,

    /// Copy of `Params::sampling`.
    pub(crate) sampling: Sampling,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Cold {
    pub(crate) params: Params,
    /// Number of outputs, including dropped ones, at which the context is full.
    pub(crate) context_left: u32,
    /// Number of tokens that its admission found cached in the full group: at least the hit, which
    /// all layer groups must have.
    pub(crate) matched: u32,
    /// Length up to which slots were reserved at admission.
    pub(crate) reserve_to: u32,
    /// Number of exported tokens, and number of tokens to export; `None` if nothing remains.
    pub(crate) export: Option<(u32, u32)>,
    /// KV slots charged to its key while it runs, under `Order::Fair`.
    pub(crate) charged_slots: u64,
    /// Drafts of its next decode.
    pub(crate) drafts: Proposal,
    /// Drafts verified and accepted so far.
    pub(crate) drafted: u32,
    pub(crate) accepted: u32,
    /// Verifications of drafts so far.
    pub(crate) verified: u32,
    /// Whether the executor's draft model reads it and drafts for it; decided with its first step.
    pub(crate) followed: Option<bool>,
    /// State of Mirostat, if the request has it.
    pub(crate) mirostat: Option<MirostatState>,
    /// What context shifts have dropped.
    pub(crate) shift: Option<Box<ContextShift>>,
    /// Positions without K/V; all are before the tokens that it is fed.
    pub(crate) gaps: Gaps,
    /// How well its drafts do, compared with what was expected of them.
    pub(crate) reliability: f32,
    /// Cache-hit tokens of the latest admission.
    pub(crate) hit: u32,
    /// Cache-hit tokens of the first admission, reported to the client as cached tokens.
    pub(crate) first_hit: u32,
    /// The match of the prompt at the first admission.
    pub(crate) prefix: PrefixMatch,
    pub(crate) preemptions: u32,
    /// The sibling that computes the shared prompt (parallel sampling); none once admitted.
    pub(crate) leader: Option<RequestId>,
    pub(crate) timings: Timings,
    pub(crate) finish: Option<Finish>,
    /// Prompt log-probabilities from the second token on, until they go out with its first event.
    pub(crate) scores: Vec<TokenLogprobs>,
    /// Arrival number; unchanged by preemption.
    pub(crate) number: u64,
}

impl Sequence {
    /// A waiting sequence without an id; the core assigns one when it is inserted.
    pub fn new(mut request: Request) -> Self {
        // `KvManager::has_unpublished_mark` searches them with every token.
        request.params.marks.sort_unstable();
        let chain = request.params.chain.as_deref();
        let mirostat = chain.and_then(|chain| chain.mirostat).map(|_| MirostatState::default());
        Self {
            tag: request.tag,
            prompt_len: request.prompt.len() as u32,
            tokens: TailBuffered::new(request.prompt),
            logprobs: request.params.sampling.logprobs.is_some(),
            has_mirostat: mirostat.is_some(),
            serial: request.params.serial,
            sampling: request.params.sampling,
            cold: Box::new(Cold { params: request.params, reliability: 1.0, mirostat, ..Cold::default() }),
            ..Self::default()
        }
    }

    /// Commits tokens chosen by the target model.
    pub fn append(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|&token| self.tokens.push(token));
    }

    /// Sets the limit of outputs from the tokens that are left of `context`, and rebuilds the stop
    /// conditions.
    pub(crate) fn fit_context(&mut self, context: u32) {
        let left = context.saturating_sub(self.tokens.len()).max(1);
        self.cold.context_left = self.outputs_len() + left;
        self.stops = FastStop::of(&self.cold.params, self.cold.context_left);
    }

    /// Truncates outputs to a total of `len` tokens; never shortens the prompt.
    pub fn truncate(&mut self, len: u32) {
        self.tokens.truncate(len.max(self.prompt_len));
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.id
    }
    /// The caller's tag.
    pub fn tag(&self) -> u64 {
        self.tag
    }
    /// Committed tokens in its context: prompt, then outputs seen by the host. Cost: may copy.
    pub fn tokens(&self) -> Cow<'_, [Token]> {
        self.tokens.from(0)
    }
    /// Prompt tokens.
    pub fn prompt(&self) -> &[Token] {
        match (self.dropped, &self.cold.shift) {
            (1.., Some(shift)) => &shift.prompt,
            _ => self.tokens.first(self.prompt_len),
        }
    }
    /// Committed outputs. Cost: may copy.
    pub fn outputs(&self) -> Cow<'_, [Token]> {
        self.all_outputs()
    }
    /// Number of committed outputs.
    #[inline]
    pub fn outputs_len(&self) -> u32 {
        (self.tokens.len() + self.dropped).saturating_sub(self.prompt_len)
    }
    /// Number of prompt tokens.
    pub fn prompt_len(&self) -> u32 {
        self.prompt_len
    }
    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.cold.params
    }
    /// Its state.
    pub fn status(&self) -> Status {
        self.status
    }
    /// Its cache sequence while it runs.
    pub fn cache_id(&self) -> Option<SeqId> {
        self.cache
    }
    /// Its executor row (sampled token and sampler state) while it runs.
    pub fn pool_row(&self) -> Option<PoolRow> {
        self.pool_row
    }
    /// Tokens whose K/V is written.
    pub fn computed(&self) -> u32 {
        self.computed
    }
    /// Tokens with KV slots, including those of steps in flight.
    pub fn claimed(&self) -> u32 {
        self.claimed
    }
    /// Tokens being sampled by steps in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
    /// Steps in flight that name it.
    pub fn steps_in_flight(&self) -> u32 {
        self.steps_in_flight
    }
    /// Committed tokens in its context plus tokens in flight.
    pub fn len(&self) -> u32 {
        self.tokens.len() + self.in_flight
    }
    /// Always false for a live request: a prompt has at least one token.
    pub fn is_empty(&self) -> bool {
        self.tokens.len() == 0
    }
    /// Tokens to feed before the next sample: the unclaimed part of the prompt (of all tokens after
    /// a preemption), or 1 for a decode.
    pub fn to_feed(&self) -> u32 {
        self.len().saturating_sub(self.claimed)
    }
    /// Whether it is in prefill (or in recomputation after a preemption).
    pub fn is_prefilling(&self) -> bool {
        self.prefilling
    }
    /// Whether prompt log-probabilities are wanted and still incomplete.
    pub fn wants_scores(&self) -> bool {
        self.sampling.prompt_logprobs.is_some()
            && self.outputs_len() == 0
            && (self.cold.scores.len() as u32) < self.prompt_len.saturating_sub(1)
    }
    /// Outputs left until its token limit; tokens in flight count as produced.
    pub fn outputs_left(&self) -> u32 {
        let had = (self.len() + self.dropped).saturating_sub(self.prompt_len);
        self.stops.cap().saturating_sub(had)
    }
    /// Most tokens that its context may reach, prompt included. The last one is not fed.
    pub fn longest(&self) -> u32 {
        (self.prompt_len + self.stops.cap()).saturating_sub(self.dropped)
    }
    /// Position after its claimed tokens.
    pub(crate) fn next_position(&self) -> u32 {
        self.claimed + self.skipped
    }
    /// Sets the gaps in its positions.
    pub(crate) fn set_gaps(&mut self, gaps: Gaps) {
        self.skipped = gaps.before(u32::MAX);
        self.cold.gaps = gaps;
    }
    /// Slots reserved for it and not yet claimed.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }
    /// Tokens published to the prefix cache.
    pub fn published(&self) -> u32 {
        self.published
    }
    /// Cache-hit tokens of its latest admission.
    pub fn hit(&self) -> u32 {
        self.cold.hit
    }

    /// How many prompt tokens matched cached K/V at the first admission, and why the match ended
    /// there.
    pub fn prefix_match(&self) -> PrefixMatch {
        self.cold.prefix
    }
    /// Timestamps; `last_token` is set only when it has ended.
    pub fn timings(&self) -> &Timings {
        &self.cold.timings
    }
    /// Finish reason, once it has ended.
    pub fn finish(&self) -> Option<Finish> {
        self.cold.finish
    }
    /// Drafts verified and accepted so far.
    pub fn draft_counts(&self) -> (u32, u32) {
        (self.cold.drafted, self.cold.accepted)
    }
    /// Arrival number.
    pub fn number(&self) -> u64 {
        self.cold.number
    }
}

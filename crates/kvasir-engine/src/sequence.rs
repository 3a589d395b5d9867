//! One request's state in the scheduler: committed tokens, KV progress, tokens in flight, drafts,
//! status and timings.
//!
//! `computed <= claimed <= tokens + in_flight`
//!
//! - `computed`: tokens whose K/V is in the cache; every step that wrote them has retired.
//! - `claimed`: tokens that have KV slots, including those of steps in flight.
//! - `tokens`: what the host has seen and the target model has chosen. No placeholders, no drafts.
//!
//! Layout: hot fields fill whole cache lines in `Sequence`, cold fields are boxed in `Rest`. At
//! thousands of rows a step is bound by memory latency, so a new field must be placed deliberately
//! (`benches/step.rs`).

use crate::stop::Plain;
use crate::{Finish, Nanos, Params, Request, RequestId};
use kvasir_exec::{PoolRow, TokenLogprobs};
use kvasir_kv::{LongList, SeqId, StepId, Token};
use kvasir_sample::Sampling;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Where a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// In the queue; owns nothing.
    #[default]
    Waiting,
    /// Admitted; owns a sequence in the cache and a place in the token pool.
    Running,
    /// Ended; kept only while a step in flight names it.
    Finished,
}

/// Where the row moves of a sequence's accepted drafts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Moves {
    #[default]
    None,
    /// They go out with the next step, whoever is in it.
    Due,
    /// They are part of this step.
    In(StepId),
}

/// When what happened to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// It was added.
    pub arrived: Nanos,
    /// It was first admitted.
    pub admitted: Option<Nanos>,
    /// The host saw its first output.
    pub first_token: Option<Nanos>,
    /// The host saw its newest output.
    pub last_token: Option<Nanos>,
    /// It ended.
    pub finished: Option<Nanos>,
}

/// One request's tokens, parameters, status and timings.
///
/// Committed tokens, tokens in flight and drafts are kept apart: the token list holds only what the host has seen and
/// the target has chosen.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub struct Sequence {
    // What every step looks at lies together, what it does not lies elsewhere: with thousands of requests a step takes as long as
    // it waits for memory. Each paragraph is a cache line.
    pub(crate) id: RequestId,
    /// Its sequence in the cache while it runs.
    pub(crate) cache: Option<SeqId>,
    /// Number of the newest `schedule` call that fed or held it.
    pub(crate) seen_in: u64,
    pub(crate) prompt_len: u32,
    /// Tokens whose K and V are there once all steps in flight are done.
    pub(crate) claimed: u32,
    /// Tokens whose K and V are there for sure: every step that wrote them has come back.
    pub(crate) computed: u32,
    /// Tokens sampled by steps in flight.
    pub(crate) in_flight: u32,
    /// Steps in flight that name it.
    pub(crate) steps_in_flight: u32,
    /// Slots promised and not claimed yet.
    pub(crate) promised: u32,
    /// Length up to which it holds slots, where they were taken ahead of claims.
    pub(crate) ahead: u32,
    /// Tokens that a step can find by content.
    pub(crate) published: u32,

    /// What ends it, in short.
    pub(crate) stops: Plain,
    pub(crate) pool_row: Option<PoolRow>,
    pub(crate) status: Status,
    /// It was admitted, and no step that feeds the end of its known tokens has been scheduled since.
    pub(crate) prefilling: bool,
    /// The step in flight verifies drafts of it.
    pub(crate) verifying: bool,
    /// It wants log-probabilities.
    pub(crate) logprobs: bool,
    /// As in its parameters.
    pub(crate) serial: bool,
    /// Its parameters were changed since it was added.
    pub(crate) amended: bool,
    /// Prompt, then outputs that the host has seen. The newest of them are the next two lines.
    pub(crate) tokens: LongList,
    pub(crate) rest: Box<Rest>,

    pub(crate) tag: u64,
    /// When the host saw its newest output; in its timings when it has ended.
    pub(crate) last_token: Option<Nanos>,
    /// Row moves of its accepted drafts that the next step makes, or that a step in flight makes.
    pub(crate) moves: Moves,
    /// Drafts for its next decode.
    pub(crate) drafts: Vec<Token>,

    /// As in its parameters.
    pub(crate) sampling: Sampling,
}

/// What of a sequence few steps look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rest {
    pub(crate) params: Params,
    /// Outputs it may have before the model's length is reached.
    pub(crate) room: u32,
    /// Length up to which slots were promised at admission.
    pub(crate) reserve_to: u32,
    /// Parents of the drafts when they are a tree; node 0 is the newest committed token.
    pub(crate) parents: Vec<i32>,
    /// Tokens found in the cache when it was admitted last.
    pub(crate) hit: u32,
    /// The same when it was admitted first, which is what its client is told.
    pub(crate) first_hit: u32,
    pub(crate) preemptions: u32,
    /// The request whose prompt it shares (fan-out), until that is computed.
    pub(crate) leader: Option<RequestId>,
    pub(crate) timings: Timings,
    pub(crate) finish: Option<Finish>,
    /// Log-probabilities of its prompt's tokens from the second on, until they go out with its first event.
    pub(crate) scores: Vec<TokenLogprobs>,
    /// Order of arrival; a preempted one keeps it.
    pub(crate) number: u64,
}

impl Sequence {
    /// A waiting sequence that nobody knows yet; the core gives it its id.
    pub fn new(request: Request) -> Self {
        Self {
            tag: request.tag,
            prompt_len: request.prompt.len() as u32,
            tokens: LongList::new(request.prompt),
            logprobs: request.params.sampling.logprobs.is_some(),
            serial: request.params.serial,
            sampling: request.params.sampling,
            rest: Box::new(Rest { params: request.params, ..Rest::default() }),
            ..Self::default()
        }
    }

    /// Commits tokens that the target has chosen.
    pub fn append(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|&token| self.tokens.push(token));
    }

    /// Drops outputs so that `len` tokens are left; the prompt stays.
    pub fn truncate(&mut self, len: u32) {
        self.tokens.truncate(len.max(self.prompt_len));
    }

    /// Blocks of `block_size` that its committed tokens take.
    pub fn blocks(&self, block_size: u32) -> u32 {
        self.tokens.len().div_ceil(block_size)
    }

    /// Tokens in the last of these blocks.
    pub fn last_block_tokens(&self, block_size: u32) -> u32 {
        self.tokens.len().saturating_sub(1) % block_size + 1
    }

    /// Its `i`-th block of tokens; none beyond the last.
    pub fn block(&self, i: u32, block_size: u32) -> Option<Vec<Token>> {
        let start = i.checked_mul(block_size).filter(|&start| start < self.tokens.len())?;
        let mut block = Vec::new();
        self.tokens.copy(start..start.saturating_add(block_size), &mut block);
        Some(block)
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.id
    }
    /// The caller's own number for it.
    pub fn tag(&self) -> u64 {
        self.tag
    }
    /// Committed tokens: prompt, then outputs that the host has seen.
    pub fn tokens(&self) -> Cow<'_, [Token]> {
        self.tokens.from(0)
    }
    /// Its prompt.
    pub fn prompt(&self) -> &[Token] {
        self.tokens.first(self.prompt_len)
    }
    /// Outputs that the host has seen.
    pub fn outputs(&self) -> Cow<'_, [Token]> {
        self.tokens.from(self.prompt_len)
    }
    /// How many outputs the host has seen.
    pub fn outputs_len(&self) -> u32 {
        self.tokens.len().saturating_sub(self.prompt_len)
    }
    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> u32 {
        self.prompt_len
    }
    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.rest.params
    }
    /// Where it stands.
    pub fn status(&self) -> Status {
        self.status
    }
    /// Its sequence in the cache while it runs.
    pub fn cache_id(&self) -> Option<SeqId> {
        self.cache
    }
    /// Its place in the token pool while it runs.
    pub fn pool_row(&self) -> Option<PoolRow> {
        self.pool_row
    }
    /// Tokens whose K and V are there for sure.
    pub fn computed(&self) -> u32 {
        self.computed
    }
    /// Tokens whose K and V are there once all steps in flight are done.
    pub fn claimed(&self) -> u32 {
        self.claimed
    }
    /// Tokens sampled by steps in flight, which the host has not seen.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
    /// Steps in flight that name it.
    pub fn steps_in_flight(&self) -> u32 {
        self.steps_in_flight
    }
    /// Committed tokens and those in flight.
    pub fn len(&self) -> u32 {
        self.tokens.len() + self.in_flight
    }
    /// Never: a prompt has a token.
    pub fn is_empty(&self) -> bool {
        self.tokens.len() == 0
    }
    /// Tokens to feed before it can be sampled: those of the prompt (or of everything, after a preemption) that are
    /// not claimed yet; 1 for a decode.
    pub fn to_feed(&self) -> u32 {
        self.len().saturating_sub(self.claimed)
    }
    /// Whether its prompt (or everything, after a preemption) is still being fed.
    pub fn is_prefilling(&self) -> bool {
        self.prefilling
    }
    /// Whether log-probabilities of its prompt are wanted that are not there yet.
    pub fn wants_scores(&self) -> bool {
        self.sampling.prompt_logprobs.is_some()
            && self.outputs_len() == 0
            && (self.rest.scores.len() as u32) < self.prompt_len.saturating_sub(1)
    }
    /// Drafts for its next decode.
    pub fn drafts(&self) -> &[Token] {
        &self.drafts
    }
    /// Outputs that it may still have, those in flight counted as had.
    pub fn outputs_left(&self) -> u32 {
        let had = self.len().saturating_sub(self.prompt_len);
        self.stops.cap().saturating_sub(had)
    }
    /// Length at which it must end. Its last token is never fed.
    pub fn longest(&self) -> u32 {
        self.prompt_len + self.stops.cap()
    }
    /// Slots promised to it and not claimed yet.
    pub fn promised(&self) -> u32 {
        self.promised
    }
    /// Tokens of it that others can find by content.
    pub fn published(&self) -> u32 {
        self.published
    }
    /// Tokens found in the cache at its last admission.
    pub fn hit(&self) -> u32 {
        self.rest.hit
    }
    /// Tokens found in the cache at its first admission.
    pub fn first_hit(&self) -> u32 {
        self.rest.first_hit
    }
    /// How often it was preempted.
    pub fn preemptions(&self) -> u32 {
        self.rest.preemptions
    }
    /// When what happened; its newest output, when it has ended.
    pub fn timings(&self) -> &Timings {
        &self.rest.timings
    }
    /// Why it ended.
    pub fn finish(&self) -> Option<Finish> {
        self.rest.finish
    }
    /// Order of arrival.
    pub fn number(&self) -> u64 {
        self.rest.number
    }
}

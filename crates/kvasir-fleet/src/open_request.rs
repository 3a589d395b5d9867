//! `OpenRequest`: a request that the front has accepted and that has not ended, with its outputs so
//! far and the worker that runs it.

use kvasir_engine::{
    Event, Fault, Finish, Nanos, Outbox, Phase, PrefixMatch, Request, RequestId, Resumption, RoleCharge,
    Summary, Timings,
};
use kvasir_kv::{Span, Token};
use std::sync::Arc;

/// Number of workers that were lost after they had admitted a request, and since its newest token,
/// at which the request becomes a suspect.
const SUSPECT_ADMITTED_LOSSES: u32 = 2;
/// Number of workers that were lost in any state of a request, and since its newest token, at which
/// it becomes a suspect. A request that crashes its worker in its first step counts as queued,
/// because the worker has not reported the admission.
const SUSPECT_LOSSES: u32 = 4;
/// Sum of the weights of the losses of an isolated suspect since its newest token, at which it
/// fails.
const MAX_ISOLATED_WEIGHT: u32 = 6;

/// State of a request on its worker when the worker was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossState {
    /// Queued beside other requests, as far as the front knows.
    Queued,
    /// Admitted beside other requests.
    Admitted,
    /// Isolated on a worker that had no other request before.
    Isolated,
    /// Isolated on a worker whose other requests were moved. The worker may not have aborted them
    /// yet, so one of them may be the cause.
    IsolatedAfterMoves,
}

/// Losses of workers since a request's newest token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Losses {
    /// Number in any state.
    count: u32,
    /// Number in the state `Admitted`.
    admitted: u32,
    /// Sum of the weights in the isolated states.
    isolated_weight: u32,
}

/// A request that has not ended.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    /// The request, with its first sibling's tag and seed.
    pub(crate) request: Arc<Request>,
    /// The recipe of its constraint.
    pub(crate) recipe: Option<Arc<str>>,
    /// Index of this sibling.
    pub(crate) sibling: u32,
    /// Its run on a worker; `None` while it waits for one.
    pub(crate) placement: Option<Placement>,
    /// How its client has ended it, if it has.
    pub(crate) ending: Option<Ending>,
    outputs: Vec<Token>,
    mu: Option<f32>,
    cached: u32,
    prefix: PrefixMatch,
    timings: Timings,
    losses: Losses,
    /// Whether a worker that had it was lost or drained, or has handed it off.
    was_moved: bool,
}

/// A run of a request on a worker.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) replica: usize,
    /// Tag of the run in the worker's messages. Unique per run, so that results of an earlier run
    /// are not mistaken for those of a later one.
    pub(crate) tag: u64,
    /// Whether the worker's engine has admitted it.
    pub(crate) is_admitted: bool,
    pub(crate) charge: RoleCharge,
    /// The charge on the worker that will decode it, if it is to be handed off.
    pub(crate) target: Option<RoleCharge>,
    /// Whether all blocks of its prompt were exported, so that it moves after its first token.
    pub(crate) is_exported: bool,
}

/// How a client ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client has disconnected or aborted it.
    Abort,
    /// The answer ends after this many outputs.
    StopAt(u32),
}

impl OpenRequest {
    pub(crate) fn new(request: Arc<Request>, recipe: Option<Arc<str>>, sibling: u32, now: Nanos) -> Self {
        Self {
            request,
            recipe,
            sibling,
            placement: None,
            ending: None,
            outputs: Vec::new(),
            mu: None,
            cached: 0,
            prefix: PrefixMatch::NONE,
            timings: Timings { arrived: now, ..Timings::default() },
            losses: Losses::default(),
            was_moved: false,
        }
    }

    /// The caller's tag.
    pub(crate) fn tag(&self) -> u64 {
        self.request.tag.wrapping_add(self.sibling.into())
    }

    /// Tokens that a worker has to prefill for it.
    pub(crate) fn tokens(&self) -> u64 {
        (self.request.prompt.len() + self.outputs.len()) as u64
    }

    /// Its phase.
    pub(crate) fn phase(&self) -> Phase {
        if self.outputs.is_empty() { Phase::Prefill } else { Phase::Decode }
    }

    /// Whether one worker can prefill it and another decode. Not if it ends with its first token,
    /// or if it returns log-probabilities of the prompt, which need a run over all prompt tokens.
    pub(crate) fn can_be_handed_off(&self) -> bool {
        let params = &self.request.params;
        self.outputs.is_empty() && params.max_tokens > 1 && params.sampling.prompt_logprobs.is_none()
    }

    /// Whether it should move to its target now.
    pub(crate) fn should_hand_off(&self) -> bool {
        let is_exported = self.placement.as_ref().is_some_and(|placement| placement.is_exported);
        is_exported && self.ending.is_none() && !self.outputs.is_empty()
    }

    /// Whether a worker that had it was lost or drained, or has handed it off.
    pub(crate) fn was_moved(&self) -> bool {
        self.was_moved
    }

    /// The request that continues it in another engine, under this tag.
    pub(crate) fn resumed(&self, tag: u64) -> Request {
        let mut request = self.request.sibling(self.sibling);
        request.tag = tag;
        request.params.resumption =
            Some(Box::new(Resumption { outputs: self.outputs.clone(), mu: self.mu, timings: self.timings }));
        request
    }

    /// Records that its worker has admitted it. True for the first admission.
    pub(crate) fn admitted(&mut self, cached: u32, prefix: PrefixMatch, now: Nanos) -> bool {
        self.placement.iter_mut().for_each(|placement| placement.is_admitted = true);
        let is_first = self.timings.admitted.is_none();
        if is_first {
            (self.cached, self.prefix) = (cached, prefix);
            self.timings.admitted = Some(now);
        }
        is_first
    }

    /// Removes its placement, because its worker was lost or drained, or hands it off.
    pub(crate) fn displace(&mut self) -> Option<Placement> {
        let placement = self.placement.take()?;
        self.was_moved = true;
        Some(placement)
    }

    /// In the summary of the last run, sets the caller's tag, and the prefix hit and admission time
    /// of the first run.
    pub(crate) fn complete(&self, summary: &mut Summary) {
        summary.tag = self.tag();
        if self.was_moved {
            (summary.cached, summary.prefix) = (self.cached, self.prefix);
            summary.timings.admitted = self.timings.admitted.or(summary.timings.admitted);
        }
    }

    /// Appends new outputs, the first of which has the index `first`. False, without a change, if
    /// that is not the next index.
    pub(crate) fn extend(&mut self, first: u32, outputs: &[Token], mu: Option<f32>, now: Nanos) -> bool {
        if first as usize != self.outputs.len() {
            return false;
        }
        if !outputs.is_empty() {
            self.outputs.extend_from_slice(outputs);
            self.mu = mu.or(self.mu);
            self.timings.first_token.get_or_insert(now);
            self.timings.last_token = Some(now);
            self.losses = Losses::default();
        }
        true
    }

    /// Records the loss of its worker. Returns the finish if the request ends; `None` if it
    /// continues on another worker.
    pub(crate) fn on_worker_lost(&mut self, state: LossState) -> Option<Finish> {
        self.losses.count += 1;
        self.losses.admitted += u32::from(state == LossState::Admitted);
        self.losses.isolated_weight += match state {
            LossState::Isolated => 2,
            LossState::IsolatedAfterMoves => 1,
            LossState::Queued | LossState::Admitted => 0,
        };
        let is_cause = self.losses.isolated_weight >= MAX_ISOLATED_WEIGHT;
        self.apply_ending().or(is_cause.then_some(Finish::Failed(Fault::DeviceLost)))
    }

    /// Truncates the outputs as its client's [`Ending`] requires, and returns the finish; `None` if
    /// the client has not ended it. The caller must have removed its placement.
    pub(crate) fn apply_ending(&mut self) -> Option<Finish> {
        match self.ending? {
            Ending::Abort => Some(Finish::Aborted),
            Ending::StopAt(keep) => {
                self.outputs.truncate(keep as usize);
                Some(Finish::StopText)
            }
        }
    }

    /// Whether it may be the cause of the loss of its workers, so that it must run isolated.
    pub(crate) fn is_suspect(&self) -> bool {
        self.losses.admitted >= SUSPECT_ADMITTED_LOSSES || self.losses.count >= SUSPECT_LOSSES
    }

    /// Writes its final event into an outbox, for a request that no worker runs.
    pub(crate) fn end(&self, finish: Finish, now: Nanos, outbox: &mut Outbox) {
        let timings = Timings { finished: Some(now), ..self.timings };
        let (prompt, outputs) = (self.request.prompt.len() as u32, self.outputs.len() as u32);
        push_end((self.tag(), finish), (prompt, self.cached, outputs), timings, outbox);
        outbox.ended.last_mut().into_iter().for_each(|summary| summary.prefix = self.prefix);
    }
}

/// Writes the final event of a request that no engine runs, without further tokens, and its summary
/// into an outbox. The counts are its tokens: of the prompt, of those the cached ones, and of the
/// outputs.
pub(crate) fn push_end(
    (tag, finish): (u64, Finish),
    (prompt, cached, outputs): (u32, u32, u32),
    timings: Timings,
    outbox: &mut Outbox,
) {
    let (request, tokens) = (RequestId(tag), Span::new(outbox.tokens.len(), 0));
    outbox.events.push(Event { request, tag, step: None, first: outputs, tokens, finish: Some(finish) });
    outbox.ended.push(Summary { prompt, outputs, cached, timings, ..Summary::empty(tag, finish) });
}

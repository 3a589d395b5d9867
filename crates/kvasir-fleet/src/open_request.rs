//! A request that the front has accepted and that has not ended: what it was asked, what it has
//! answered, and which worker runs it.

use kvasir_engine::{
    Charge, Event, Fault, Finish, Nanos, Outbox, Request, RequestId, Resumption, Summary, Timings,
};
use kvasir_kv::{Span, Token};
use std::sync::Arc;

/// Workers lost in a row while they ran a request, without a token in between, after which the request
/// fails: it may be what ends them.
const MAX_LOSSES: u32 = 5;

/// A request without its end.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    /// The request with its first sibling's tag and seed, and the recipe of its constraint.
    pub(crate) request: Arc<Request>,
    pub(crate) recipe: Option<Arc<str>>,
    /// Which of its siblings this is.
    pub(crate) sibling: u32,
    /// The worker that runs it; `None` while it waits for one.
    pub(crate) placement: Option<Placement>,
    /// How its client ends it, if it does.
    pub(crate) ending: Option<Ending>,
    outputs: Vec<Token>,
    mu: Option<f32>,
    cached: u32,
    timings: Timings,
    /// Workers that were lost while they ran it, since its newest token.
    losses: u32,
    /// Whether any worker was lost that had it.
    was_moved: bool,
}

/// A run of a request on a worker.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) replica: usize,
    /// The tag that the worker knows it by. Each run has its own, so that results of an earlier run are
    /// not taken for those of a later one.
    pub(crate) tag: u64,
    /// Whether it was admitted there.
    pub(crate) runs: bool,
    pub(crate) charge: Charge,
}

/// How a client ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It has gone.
    Abort,
    /// Its text stops after this many outputs.
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
            timings: Timings { arrived: now, ..Timings::default() },
            losses: 0,
            was_moved: false,
        }
    }

    /// Its tag, as the caller knows it.
    pub(crate) fn tag(&self) -> u64 {
        self.request.tag.wrapping_add(self.sibling.into())
    }

    /// Tokens that a worker has to compute for it.
    pub(crate) fn tokens(&self) -> u64 {
        (self.request.prompt.len() + self.outputs.len()) as u64
    }

    /// Whether it has run before.
    pub(crate) fn has_run(&self) -> bool {
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

    /// Notes that its worker runs it. True if none has before.
    pub(crate) fn admitted(&mut self, cached: u32, now: Nanos) -> bool {
        self.placement.iter_mut().for_each(|placement| placement.runs = true);
        let is_first = self.timings.admitted.is_none();
        if is_first {
            self.cached = cached;
            self.timings.admitted = Some(now);
        }
        is_first
    }

    /// Takes its placement away.
    pub(crate) fn displace(&mut self) -> Option<Placement> {
        let placement = self.placement.take()?;
        self.was_moved = true;
        Some(placement)
    }

    /// Completes the summary of its last run by what was before.
    pub(crate) fn complete(&self, summary: &mut Summary) {
        summary.tag = self.tag();
        if self.was_moved {
            summary.cached = self.cached;
            summary.timings.admitted = self.timings.admitted.or(summary.timings.admitted);
        }
    }

    /// Takes over new outputs, the first of which has the index `first`. False if outputs are missing.
    pub(crate) fn extend(&mut self, first: u32, outputs: &[Token], mu: Option<f32>, now: Nanos) -> bool {
        if first as usize != self.outputs.len() {
            return false;
        }
        if !outputs.is_empty() {
            self.outputs.extend_from_slice(outputs);
            self.mu = mu.or(self.mu);
            self.timings.first_token.get_or_insert(now);
            self.timings.last_token = Some(now);
            self.losses = 0;
        }
        true
    }

    /// Notes that its worker was lost while it `ran` the request or had it in its queue. Returns why the
    /// request ends, if it does not continue elsewhere.
    pub(crate) fn lost(&mut self, ran: bool) -> Option<Finish> {
        self.losses += u32::from(ran);
        match self.ending {
            Some(Ending::Abort) => Some(Finish::Aborted),
            Some(Ending::StopAt(keep)) => {
                self.outputs.truncate(keep as usize);
                Some(Finish::StopText)
            }
            None => (self.losses >= MAX_LOSSES).then_some(Finish::Failed(Fault::DeviceLost)),
        }
    }

    /// Writes its end into an outbox, for a request that no worker runs.
    pub(crate) fn end(&self, finish: Finish, now: Nanos, outbox: &mut Outbox) {
        let summary = Summary {
            request: RequestId(self.tag()),
            tag: self.tag(),
            finish,
            prompt: self.request.prompt.len() as u32,
            outputs: self.outputs.len() as u32,
            cached: self.cached,
            dropped: 0,
            preemptions: 0,
            drafted: 0,
            accepted: 0,
            verified: 0,
            timings: Timings { finished: Some(now), ..self.timings },
        };
        push_end(summary, outbox);
    }
}

/// Writes the end of a request, without further tokens, into an outbox.
pub(crate) fn push_end(summary: Summary, outbox: &mut Outbox) {
    let Summary { request, tag, outputs, finish, .. } = summary;
    let tokens = Span::new(outbox.tokens.len(), 0);
    outbox.events.push(Event { request, tag, step: None, first: outputs, tokens, finish: Some(finish) });
    outbox.ended.push(summary);
}

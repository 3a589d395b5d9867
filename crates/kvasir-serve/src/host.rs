//! The engine behind the server: its thread, and the way to it and back.

use crate::{
    ApiError,
    call::Call,
    clients::{Client, Clients},
    kept::Kept,
    mail::{Mailbox, Post, locked},
    metrics::{Eyes, Metrics, Rejected},
    pulse::{Listener, Pulse},
    report::Reports,
};
pub use crate::{clients::Allowance, mail::Piece};
use kvasir_engine::{Engine, Exit, Fault, Finish, Message, Refusal, Request};
use kvasir_exec::Executor;
use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    task::Poll,
    thread,
    time::Duration,
};

/// An engine on a thread of its own, and the way to it and back.
///
/// What waits for a client that does not read is bounded by what the client asked for: its tokens.
pub struct Host {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) kept: Arc<Kept>,
    clients: Arc<Mutex<Clients>>,
    exit: Arc<Mutex<Option<Exit>>>,
    next_tag: AtomicU64,
    metrics: Arc<Metrics>,
    allowed: Allowance,
    reports: Arc<Reports>,
    draining: AtomicBool,
    pulse: Arc<Pulse>,
}

impl Host {
    /// Starts `engine` on its thread. It takes what is `allowed` and tells `reports` how each request went. If no step comes back
    /// for longer than `patience` while somebody waits for one, it is [stalled](Host::trouble).
    pub fn start<E: Executor + Send + 'static>(
        engine: Engine<E>,
        allowed: Allowance,
        reports: Arc<Reports>,
        patience: Duration,
    ) -> std::io::Result<Arc<Self>>
    where
        E::Pending: Send,
    {
        let (inbox, messages) = mpsc::channel();
        let metrics = Arc::new(Metrics::default());
        let pulse = Pulse::new(patience);
        let eyes = Box::new(Eyes(metrics.clone()));
        let mut engine = engine.observe(eyes).observe(Box::new(Listener(pulse.clone())));
        let host = Arc::new(Self {
            inbox,
            kept: Arc::default(),
            clients: Arc::default(),
            exit: Arc::default(),
            next_tag: AtomicU64::new(1),
            metrics: metrics.clone(),
            allowed,
            reports: reports.clone(),
            draining: AtomicBool::new(false),
            pulse,
        });
        let (clients, kept, exit) = (host.clients.clone(), host.kept.clone(), host.exit.clone());
        thread::Builder::new().name("engine".into()).spawn(move || {
            let mut post = Post::new(metrics, reports);
            let why = engine.serve(&messages, |outbox| {
                // First, so that who hears of an end finds what it left.
                kept.hear(outbox);
                post.deliver(&clients, outbox);
            });
            *locked(&exit) = Some(why);
            post.close(&clients);
            kept.close();
        })?;
        Ok(host)
    }

    /// As many requests of at most so many tokens as may be under way at once.
    pub(crate) fn at_once(&self, tokens: u64) -> usize {
        let Allowance { answers, answers_per_key, tokens: all } = self.allowed;
        answers.min(answers_per_key).min(usize::try_from(all / tokens.max(1)).unwrap_or(usize::MAX))
    }

    /// Hands orders of one key over, each `n` times; one stream for each answer, order by order. All of them are taken, or none.
    pub fn submit(self: &Arc<Self>, orders: Vec<Order>, n: u32) -> Result<Vec<Answers>, ApiError> {
        if self.draining.load(Ordering::Relaxed) {
            self.metrics.reject(Rejected::Draining);
            return Err(ApiError::unavailable("the server is leaving"));
        }
        let (prompts, n) = (orders.len() as u64, u64::from(n));
        let tokens = orders.iter().map(|order| order.tokens).sum::<u64>() * n;
        self.allowed.ever(prompts, n, tokens)?;
        let (call, key) = (Call::current(), orders.first().map_or(0, |order| order.request.params.key));
        let mut clients = locked(&self.clients);
        if let Err((why, text)) = clients.admit(&self.allowed, key, (prompts * n) as usize, tokens) {
            drop(clients);
            self.metrics.reject(why);
            return Err(ApiError::too_many(text));
        }
        if clients.by_tag.is_empty() {
            self.pulse.beat();
        }
        let mut streams = Vec::with_capacity((prompts * n) as usize);
        let mut messages = Vec::with_capacity(orders.len());
        for Order { mut request, tokens } in orders {
            request.tag = self.next_tag.fetch_add(n, Ordering::Relaxed);
            streams.extend((request.tag..request.tag + n).map(|tag| {
                let mailbox = Arc::<Mutex<Mailbox>>::default();
                clients.insert(tag, Client { mailbox: mailbox.clone(), call: call.clone(), key, tokens });
                Answers { tag, mailbox, host: self.clone(), ended: false }
            }));
            messages.push(Message::Add { request: Box::new(request), n: n as u32 });
        }
        drop(clients);
        let sent = messages.into_iter().all(|message| self.inbox.send(message).is_ok());
        match sent && self.exit().is_none() {
            true => Ok(streams),
            false => Err(ApiError::unavailable("the engine has stopped")),
        }
    }

    /// Where it is told how requests went.
    pub fn reports(&self) -> &Arc<Reports> {
        &self.reports
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Why the engine has stopped, if it has.
    pub fn exit(&self) -> Option<Exit> {
        locked(&self.exit).clone()
    }

    /// Why no request can be answered now, if so.
    pub fn trouble(&self) -> Option<String> {
        if let Some(why) = self.exit() {
            return Some(format!("the engine has stopped: {why}"));
        }
        if self.is_draining() {
            return Some("the server is leaving".into());
        }
        // The silence first: who begins to wait meanwhile ends it.
        let (silence, open) = (self.pulse.silence()?, self.open());
        let seconds = silence.as_secs_f64();
        (open > 0)
            .then(|| format!("no step has come back for {seconds:.1} s while {open} answers are waited for"))
    }

    /// Answers that are being made or waited for.
    pub fn open(&self) -> usize {
        locked(&self.clients).by_tag.len()
    }

    /// Whether it takes no more requests.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Ends the answers that are under way; their clients are told, and so are the reports. How many there were.
    pub fn cut(&self) -> usize {
        let open = self.open();
        // An engine that is gone already has told everybody.
        let _ = self.inbox.send(Message::Exit);
        open
    }

    /// Takes no more requests, and lets the engine leave when those it has are done.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        // An engine that is gone already has nothing to drain.
        let _ = self.inbox.send(Message::Drain);
    }
}

/// A request for the engine, and what it counts for here.
#[derive(Clone, Debug)]
pub struct Order {
    /// The request.
    pub request: Request,
    /// Tokens of its prompt, and those that its answer may be expected to have.
    pub tokens: u64,
}

/// The answer to one prompt, piece by piece. Dropping it before its end aborts the request.
pub struct Answers {
    tag: u64,
    mailbox: Arc<Mutex<Mailbox>>,
    host: Arc<Host>,
    ended: bool,
}

impl Answers {
    /// Fills `piece` with the next one; what has piled up comes as one. An error if the engine is gone.
    pub async fn next(&mut self, piece: &mut Piece) -> Result<(), ApiError> {
        piece.clear();
        let (mailbox, host) = (&self.mailbox, &self.host);
        let there = poll_fn(|context| {
            let mut mail = locked(mailbox);
            if !mail.piece.is_empty() {
                std::mem::swap(&mut mail.piece, piece);
                return Poll::Ready(true);
            }
            // An engine that stopped before this request was listed has told nobody.
            if mail.closed || host.exit().is_some() {
                return Poll::Ready(false);
            }
            match &mut mail.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        });
        match there.await {
            true => self.ended = piece.ended.is_some(),
            false => return Err(ApiError::unavailable("the engine has stopped")),
        }
        Ok(())
    }

    /// Asks for the end after `keep` tokens, because the text contains a stop. The last piece follows soon.
    pub fn stop_at(&self, keep: u32) {
        let _ = self.host.inbox.send(Message::StopAt { tag: self.tag, keep });
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The engine answers with an end, which is counted and told like any other.
        if self.host.inbox.send(Message::Abort { tag: self.tag }).is_err() {
            drop(locked(&self.host.clients).remove(self.tag));
        }
    }
}

/// The error that a client gets for a request that the engine does not take.
pub(crate) fn refused(refusal: Refusal) -> ApiError {
    let why = refusal.to_string();
    match refusal {
        Refusal::EmptyPrompt => ApiError::param("prompt", "the prompt has no token"),
        Refusal::WithinPrefix { .. } => ApiError::param("prompt", why),
        Refusal::TooLong { .. } | Refusal::NeverFits { .. } | Refusal::OverBudget { .. } => {
            ApiError::too_long("messages", why)
        }
        Refusal::NoState => ApiError::param("model", why),
        Refusal::QueueFull { .. } => ApiError::too_many(why),
        Refusal::BadParameter(which) => ApiError::param(which.name(), why),
    }
}

/// The error that a client gets for a request that ended like this, if it is one.
pub fn failure(finish: Finish) -> Option<ApiError> {
    let message = finish.to_string();
    match finish {
        Finish::Refused(refusal) => Some(refused(refusal)),
        Finish::Failed(fault @ (Fault::Constraint | Fault::NotFinite)) => {
            Some(ApiError::failed(fault.to_string()))
        }
        Finish::Failed(fault) => {
            Some(ApiError::failed(format!("the step that ran this request failed ({fault:?})")))
        }
        Finish::Aborted => Some(ApiError::unavailable(message)),
        _ => None,
    }
}

//! Runs the engine on its own thread and connects it to HTTP handlers: an inbox of messages in, a
//! mailbox per answer out.
//!
//! Invariants: `submit` admits all answers of a request or none. Dropping an `Answers` stream
//! before its end aborts the request. Backpressure: the backlog of a client that does not read is
//! bounded by its own token limit. The engine's thread never touches JSON, text or sockets.

use crate::{
    context::call::Call,
    error::ApiError,
    host::{
        admission::{Allowance, Client, Clients},
        delivery::Post,
        retained_sessions::Kept,
        stall_detector::{Listener, StallDetector},
        token_buffer::{Mailbox, Piece, locked},
    },
    metrics::{Eyes, Metrics, Rejected},
    report::sinks::Reports,
};
use kvasir_engine::{Engine, Exit, Message, Request, SessionId};
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

/// Handle of an engine that runs on its own thread.
///
/// The backlog of a client that does not read is bounded by the tokens that it requested.
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
    pulse: Arc<StallDetector>,
}

impl Host {
    /// Starts `engine` on its own thread, with admission limits `allowed`; `reports` receives the
    /// outcome of each request. If no step completes within `patience` while answers are pending,
    /// the engine counts as [stalled](Host::trouble).
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
        let pulse = StallDetector::new(patience);
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
                // Sessions first: a client that sees the end of its answer must find the retained
                // state.
                kept.hear(outbox);
                post.deliver(&clients, outbox);
            });
            *locked(&exit) = Some(why);
            post.close(&clients);
            kept.close();
        })?;
        Ok(host)
    }

    /// How many requests of at most `tokens` tokens the admission limits allow at once.
    pub(crate) fn at_once(&self, tokens: u64) -> usize {
        let Allowance { answers, answers_per_key, tokens: all } = self.allowed;
        answers.min(answers_per_key).min(usize::try_from(all / tokens.max(1)).unwrap_or(usize::MAX))
    }

    /// Submits orders of one API key, each with `n` answers; returns a stream per answer, order by
    /// order. All are admitted, or none.
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
        if sent && self.exit().is_none() {
            Ok(streams)
        } else {
            Err(ApiError::unavailable("the engine has stopped"))
        }
    }

    /// The log and trace sink.
    pub fn reports(&self) -> &Arc<Reports> {
        &self.reports
    }

    /// The metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Why the engine has stopped, if it has.
    pub fn exit(&self) -> Option<Exit> {
        locked(&self.exit).clone()
    }

    /// Why no request can be served now, if so: stopped, draining or stalled.
    pub fn trouble(&self) -> Option<String> {
        if let Some(why) = self.exit() {
            return Some(format!("the engine has stopped: {why}"));
        }
        if self.is_draining() {
            return Some("the server is leaving".into());
        }
        // Read the silence first: a request that arrives in between resets it.
        let (silence, open) = (self.pulse.silence()?, self.open());
        let seconds = silence.as_secs_f64();
        (open > 0)
            .then(|| format!("no step has come back for {seconds:.1} s while {open} answers are waited for"))
    }

    /// Number of open answers, running or queued.
    pub fn open(&self) -> usize {
        locked(&self.clients).by_tag.len()
    }

    /// Whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Aborts all open answers; clients and reports are notified. Returns how many there were.
    pub fn cut(&self) -> usize {
        let open = self.open();
        // A stopped engine has notified all clients already.
        let _ = self.inbox.send(Message::Exit);
        open
    }

    /// Refuses new requests, and lets the engine exit once running ones are done (graceful
    /// shutdown).
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        // A stopped engine has nothing to drain.
        let _ = self.inbox.send(Message::Drain);
    }
}

impl Host {
    /// Cached tokens of a session.
    pub fn kept(&self, session: SessionId) -> u32 {
        self.kept.tokens(session)
    }

    /// Starts new sessions with the first `at` tokens of another (copy-on-write), and waits for the
    /// engine's confirmation.
    pub async fn fork(&self, from: SessionId, into: &[SessionId], at: u32) -> Result<(), ApiError> {
        self.tell_and_hear(into, Message::Fork { from, into: into.to_vec(), at }).await
    }

    /// Truncates a session to `to` tokens, and waits for the engine's confirmation.
    pub async fn rewind(&self, session: SessionId, to: u32) -> Result<(), ApiError> {
        self.tell_and_hear(&[session], Message::Rewind { session, to }).await
    }

    /// Sends a message, and waits until the engine has reported the state of these sessions.
    async fn tell_and_hear(&self, of: &[SessionId], message: Message) -> Result<(), ApiError> {
        let reports = self.kept.reports_on(of);
        self.tell(message)?;
        for report in reports {
            report.await.map_err(|_| gone())?;
        }
        Ok(())
    }

    /// Ends a session; the engine releases its K/V.
    pub fn end_session(&self, session: SessionId) {
        // A stopped engine retains nothing.
        let _ = self.tell(Message::EndSession(session));
    }

    fn tell(&self, message: Message) -> Result<(), ApiError> {
        if self.inbox.send(message).is_ok() && self.exit().is_none() { Ok(()) } else { Err(gone()) }
    }
}

fn gone() -> ApiError {
    ApiError::unavailable("the engine has stopped")
}

/// An engine request with its admission cost.
#[derive(Clone, Debug)]
pub struct Order {
    /// The engine request.
    pub request: Request,
    /// Prompt tokens plus expected answer tokens, per answer.
    pub tokens: u64,
}

/// Stream of one answer. Dropping it before its end aborts the request.
pub struct Answers {
    tag: u64,
    mailbox: Arc<Mutex<Mailbox>>,
    host: Arc<Host>,
    ended: bool,
}

impl Answers {
    /// Waits for the next piece and swaps it into `piece`; a backlog arrives as one piece. Fails if
    /// the engine has stopped.
    pub async fn next(&mut self, piece: &mut Piece) -> Result<(), ApiError> {
        piece.clear();
        let (mailbox, host) = (&self.mailbox, &self.host);
        let there = poll_fn(|context| {
            let mut mail = locked(mailbox);
            if !mail.piece.is_empty() {
                std::mem::swap(&mut mail.piece, piece);
                return Poll::Ready(true);
            }
            // An engine that stopped before this request was registered has not closed its mailbox.
            if mail.closed || host.exit().is_some() {
                return Poll::Ready(false);
            }
            match &mut mail.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        });
        if there.await {
            self.ended = piece.ended.is_some()
        } else {
            return Err(ApiError::unavailable("the engine has stopped"));
        }
        Ok(())
    }

    /// Ends the answer after `keep` tokens, because its text contains a stop sequence. The last
    /// piece follows.
    pub fn stop_at(&self, keep: u32) {
        let _ = self.host.inbox.send(Message::StopAt { tag: self.tag, keep });
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The engine confirms with an end, which is counted and reported like any other.
        if self.host.inbox.send(Message::Abort { tag: self.tag }).is_err() {
            drop(locked(&self.host.clients).remove(self.tag));
        }
    }
}

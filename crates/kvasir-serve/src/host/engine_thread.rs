//! Runs the engine on its own thread and connects it to HTTP handlers: an inbox of messages in, a
//! token stream per answer out.
//!
//! Invariants: `submit` admits all answers of a request or none. Dropping a `TokenStream` before
//! its end aborts the request. Backpressure: the backlog of a client that does not read is bounded
//! by its own token limit and by the budget of streams: beyond it, the client's connection is cut.
//! The engine's thread never touches JSON, text or sockets. When that thread ends, also by a panic,
//! `exit` says why and every open answer and session operation fails.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::host::admission::{AdmissionLimits, Client, Clients};
use crate::host::delivery::Delivery;
use crate::host::draft_log::DraftLog;
use crate::host::errors::{read_too_slowly, stopped};
use crate::host::lock::{Mutex, locked};
use crate::host::output_buffer::{Closed, OutputBuffer};
use crate::host::request_output::RequestOutput;
use crate::host::retained_sessions::RetainedSessions;
use crate::host::stall_detector::{StallDetector, StallObserver};
use crate::metrics::{Metrics, Rejected};
use crate::report::sinks::Reports;
use kvasir_engine::{Engine, Exit, KvImport, Message, ReplicaPhase, Replicas, Request, Serving, SessionId};
use kvasir_exec::Executor;
use std::{
    any::Any,
    future::poll_fn,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Interval at which [`Host::ended`] polls for the exit of the engine's thread.
const EXIT_POLL: Duration = Duration::from_millis(5);

/// Handle of an engine that runs on its own thread.
///
/// The backlog of a client that does not read is bounded by the tokens that it requested.
pub struct Host {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) retained: Arc<RetainedSessions>,
    clients: Arc<Mutex<Clients>>,
    exit: Arc<Mutex<Option<Exit>>>,
    next_tag: AtomicU64,
    metrics: Arc<Metrics>,
    limits: AdmissionLimits,
    cut_obstacle: Option<String>,
    replicas: Option<Arc<dyn Replicas>>,
    reports: Arc<Reports>,
    draining: AtomicBool,
    stall_detector: Arc<StallDetector>,
}

impl Host {
    /// Starts `engine` on its own thread, with these admission limits; `reports` receives the
    /// outcome of each request. If no step completes within `timeout` while answers are pending,
    /// the engine counts as [stalled](Host::why_not_ready).
    pub fn start<E: Executor + Send + 'static>(
        engine: Engine<E>,
        limits: AdmissionLimits,
        reports: Arc<Reports>,
        timeout: Duration,
    ) -> std::io::Result<Arc<Self>>
    where
        E::Pending: Send,
    {
        Self::start_wrapped(engine, |engine| engine, limits, reports, timeout)
    }

    /// As [`start`](Self::start); the thread serves what `wrap` makes of the engine.
    pub fn start_wrapped<E: Executor + Send + 'static>(
        engine: Engine<E>,
        wrap: impl FnOnce(Box<dyn Serving>) -> Box<dyn Serving>,
        limits: AdmissionLimits,
        reports: Arc<Reports>,
        timeout: Duration,
    ) -> std::io::Result<Arc<Self>>
    where
        E::Pending: Send,
    {
        let metrics = Arc::new(Metrics::default());
        let stall_detector = StallDetector::new(timeout);
        let stalls = Box::new(StallObserver(stall_detector.clone()));
        let drafts = Box::new(DraftLog::new(reports.clone()));
        let engine = engine.observe(metrics.engine.observer()).observe(stalls).observe(drafts);
        let cut_obstacle = engine.core().cut_obstacle().map(|why| why.to_string());
        let engine = wrap(Box::new(engine));
        let observers = Observers { metrics, reports, stall_detector };
        Self::serve(engine, cut_obstacle, None, limits, observers)
    }

    /// Starts a host whose engines run in other processes (data parallelism).
    pub fn start_fleet(
        fleet: FleetParts,
        limits: AdmissionLimits,
        reports: Arc<Reports>,
    ) -> std::io::Result<Arc<Self>> {
        let FleetParts { serving, replicas, cut_obstacle, metrics } = fleet;
        let ReplicaObserver { metrics, stall_detector } = metrics;
        let observers = Observers { metrics, reports, stall_detector };
        Self::serve(serving, cut_obstacle, Some(replicas), limits, observers)
    }

    /// Runs an engine or a fleet on a thread of its own.
    fn serve(
        engine: Box<dyn Serving>,
        cut_obstacle: Option<String>,
        replicas: Option<Arc<dyn Replicas>>,
        limits: AdmissionLimits,
        observers: Observers,
    ) -> std::io::Result<Arc<Self>> {
        let Observers { metrics, reports, stall_detector } = observers;
        let (inbox, messages) = mpsc::channel();
        let host = Arc::new(Self {
            inbox,
            retained: Arc::default(),
            clients: Arc::default(),
            exit: Arc::default(),
            next_tag: AtomicU64::new(1),
            metrics: metrics.clone(),
            limits,
            cut_obstacle,
            replicas,
            reports: reports.clone(),
            draining: AtomicBool::new(false),
            stall_detector,
        });
        let (clients, retained, exit) = (host.clients.clone(), host.retained.clone(), host.exit.clone());
        thread::Builder::new().name("engine".into()).spawn(move || {
            let mut delivery = Delivery::new(metrics, reports);
            let serve = || {
                engine.serve_inbox(messages, &mut |outbox| {
                    // Sessions first: a client that sees the end of its answer must find the
                    // retained state.
                    retained.record(outbox);
                    delivery.deliver(&clients, outbox);
                })
            };
            // After a panic nothing of the engine is used: it is dropped behind the last notice.
            let why = catch_unwind(AssertUnwindSafe(serve)).unwrap_or_else(|panic| panicked(&*panic));
            *locked(&exit) = Some(why);
            delivery.close(&clients);
            retained.close();
        })?;
        Ok(host)
    }

    /// Maximum number of open requests of a key, each of at most `tokens` tokens.
    pub(crate) fn at_once(&self, key: u64, tokens: u64) -> usize {
        self.limits.at_once(key, tokens)
    }

    /// Submits requests of one API key, each with `n` answers; returns a stream per answer, request
    /// by request. All are admitted, or none.
    pub fn submit(
        self: &Arc<Self>,
        submissions: Vec<Submission>,
        n: u32,
    ) -> Result<Vec<TokenStream>, ApiError> {
        let context = RequestContext::current();
        let key = submissions.first().map_or(0, |submission| submission.request.params.key);
        let key_metrics = self.metrics.of_key(key, context.key_name.as_deref());
        if self.draining.load(Ordering::Relaxed) {
            self.metrics.reject(Rejected::Draining, key_metrics.as_deref());
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        let (prompts, n) = (submissions.len() as u64, u64::from(n));
        let tokens = submissions.iter().map(|submission| submission.tokens).sum::<u64>() * n;
        self.limits.check_feasible(prompts, n, tokens)?;
        let mut clients = locked(&self.clients);
        if clients.is_closed() {
            return Err(stopped());
        }
        if let Err((why, text)) = clients.admit(&self.limits, key, (prompts * n) as usize, tokens) {
            drop(clients);
            self.metrics.reject(why, key_metrics.as_deref());
            return Err(ApiError::too_many(text));
        }
        if clients.by_tag.is_empty() {
            self.stall_detector.record_progress();
        }
        let mut streams = Vec::with_capacity((prompts * n) as usize);
        let mut messages = Vec::with_capacity(submissions.len());
        for Submission { mut request, tokens } in submissions {
            request.tag = self.next_tag.fetch_add(n, Ordering::Relaxed);
            streams.extend((request.tag..request.tag + n).map(|tag| {
                let buffer = Arc::<OutputBuffer<RequestOutput>>::default();
                let (context, key_metrics, delivered_at) = (context.clone(), key_metrics.clone(), None);
                let buffered = buffer.clone();
                let client = Client {
                    buffer: buffered,
                    context,
                    key,
                    key_metrics,
                    tokens,
                    delivered_at,
                    is_cut: false,
                };
                clients.insert(tag, client);
                TokenStream { tag, buffer, host: self.clone(), ended: false }
            }));
            messages.push(Message::Add { request: Box::new(request), n: n as u32 });
        }
        drop(clients);
        let sent = messages.into_iter().all(|message| self.inbox.send(message).is_ok());
        if sent && self.exit().is_none() { Ok(streams) } else { Err(stopped()) }
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

    /// Waits until the engine's thread has ended, which ends the worker processes of a fleet first.
    /// Returns after `at_most` in any case.
    pub async fn ended(&self, at_most: Duration) {
        let begin = Instant::now();
        while self.exit().is_none() && begin.elapsed() < at_most {
            sleep(EXIT_POLL).await;
        }
    }

    /// Why no request can be served now, if so: stopped, draining or stalled.
    pub fn why_not_ready(&self) -> Option<String> {
        if let Some(why) = self.exit() {
            return Some(format!("the engine has stopped: {why}"));
        }
        if self.is_draining() {
            return Some("the server is shutting down".into());
        }
        if let Some(replicas) = self.replicas()
            && !replicas.status().iter().any(|replica| replica.phase == ReplicaPhase::Ready)
        {
            return Some("no replica is ready".into());
        }
        // Read the silence first: a request that arrives in between resets it.
        let (silence, open) = (self.stall_detector.silence()?, self.open());
        let seconds = silence.as_secs_f64();
        (open > 0).then(|| format!("no step has completed for {seconds:.1} s with {open} open answers"))
    }

    /// Whether any replica is not ready. False if the engine runs in this process.
    pub fn is_degraded(&self) -> bool {
        let replicas = self.replicas().map(Replicas::status).unwrap_or_default();
        replicas.iter().any(|replica| replica.phase != ReplicaPhase::Ready)
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
    pub fn abort_all(&self) -> usize {
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
    pub fn retained_tokens(&self, session: SessionId) -> u32 {
        self.retained.tokens(session)
    }

    /// Starts new sessions with the first `at` tokens of another (copy-on-write), and waits for the
    /// engine's confirmation.
    pub async fn fork(&self, from: SessionId, into: &[SessionId], at: u32) -> Result<(), ApiError> {
        self.send_and_await(into, Message::Fork { from, into: into.to_vec(), at }).await
    }

    /// Truncates a session to `to` tokens, and waits for the engine's confirmation.
    pub async fn rewind(&self, session: SessionId, to: u32) -> Result<(), ApiError> {
        self.send_and_await(&[session], Message::Rewind { session, to }).await
    }

    /// Why no range can be cut out of a session, if so.
    pub fn cut_obstacle(&self) -> Option<&str> {
        self.cut_obstacle.as_deref()
    }

    /// The replicas, if engines run in processes of their own.
    pub fn replicas(&self) -> Option<&dyn Replicas> {
        self.replicas.as_deref()
    }

    /// Cuts a range of tokens out of a session, and waits for the engine's confirmation.
    pub async fn cut(&self, session: SessionId, range: Range<u32>) -> Result<(), ApiError> {
        self.send_and_await(&[session], Message::Cut { session, range }).await
    }

    /// Sends a message, and waits until the engine has reported the state of these sessions.
    async fn send_and_await(&self, of: &[SessionId], message: Message) -> Result<(), ApiError> {
        let reports = self.retained.reports_on(of);
        self.send_message(message)?;
        for report in reports {
            report.await.map_err(|_| stopped())?;
        }
        Ok(())
    }

    /// Ends a session; the engine releases its K/V.
    pub fn end_session(&self, session: SessionId) {
        // A stopped engine retains nothing.
        let _ = self.send_message(Message::EndSession(session));
    }

    /// Imports K/V blocks into the prefix cache of an engine in this process, before it handles
    /// requests that are submitted later. No reply: the prefix hit of a later request shows whether
    /// they are stored.
    pub(crate) fn import_kv(&self, import: KvImport) -> Result<(), ApiError> {
        self.send_message(Message::Import(Box::new(import)))
    }

    fn send_message(&self, message: Message) -> Result<(), ApiError> {
        if self.inbox.send(message).is_ok() && self.exit().is_none() { Ok(()) } else { Err(stopped()) }
    }
}

/// Observers of the engine and of its requests.
struct Observers {
    metrics: Arc<Metrics>,
    reports: Arc<Reports>,
    stall_detector: Arc<StallDetector>,
}

/// What a [`Host`] needs to serve with engines in other processes.
pub struct FleetParts {
    /// Routes requests to the replicas, and delivers their output.
    pub serving: Box<dyn Serving>,
    /// Lists, drains and restarts the replicas.
    pub replicas: Arc<dyn Replicas>,
    /// Why no range can be cut out of a session, if so.
    pub cut_obstacle: Option<String>,
    /// Receives the counters of the replicas.
    pub metrics: ReplicaObserver,
}

/// Receives the counters of engines in other processes.
#[derive(Clone)]
pub struct ReplicaObserver {
    metrics: Arc<Metrics>,
    stall_detector: Arc<StallDetector>,
}

impl ReplicaObserver {
    /// An observer of `replicas` engines. If none completes a step within `timeout` while answers
    /// are pending, the fleet counts as stalled.
    pub fn new(replicas: usize, timeout: Duration) -> Self {
        let metrics = Arc::new(Metrics::of_replicas(replicas));
        Self { metrics, stall_detector: StallDetector::new(timeout) }
    }

    /// Replaces the counters of a replica by a snapshot of its `EngineMetrics`; an empty one says
    /// that the process of the replica has ended.
    pub fn update(&self, replica: usize, counters: &[u64]) {
        let steps = self.metrics.engine.steps.get();
        if let Some(replicas) = &self.metrics.replicas {
            replicas.update(replica, counters);
        }
        if self.metrics.engine.steps.get() != steps {
            self.stall_detector.record_progress();
        }
    }
}

/// The exit of an engine whose thread has panicked.
fn panicked(panic: &(dyn Any + Send)) -> Exit {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Exit::Broken(format!("the engine thread panicked: {}", text.unwrap_or("no message")))
}

/// An engine request with its admission cost.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The engine request.
    pub request: Request,
    /// Prompt tokens plus expected answer tokens, per answer.
    pub tokens: u64,
}

/// Stream of one answer. Dropping it before its end aborts the request.
pub struct TokenStream {
    tag: u64,
    buffer: Arc<OutputBuffer<RequestOutput>>,
    host: Arc<Host>,
    ended: bool,
}

impl TokenStream {
    /// The tag of the request, which K/V exports carry.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    /// Waits for more output and swaps it into `output`; a backlog arrives at once. Fails if
    /// the engine has stopped, or if the backlog exceeded its memory budget.
    pub async fn next(&mut self, output: &mut RequestOutput) -> Result<(), ApiError> {
        output.clear();
        let taken = poll_fn(|context| self.buffer.poll_take(output, context)).await;
        taken.map_err(|Closed| self.host.exit().map_or_else(read_too_slowly, |_| stopped()))?;
        self.ended = output.ended.is_some();
        Ok(())
    }

    /// Ends the answer after `keep` tokens, because its text contains a stop sequence. The last
    /// output follows.
    pub fn stop_at(&self, keep: u32) {
        let _ = self.host.inbox.send(Message::StopAt { tag: self.tag, keep });
    }
}

impl Drop for TokenStream {
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

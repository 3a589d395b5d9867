//! A worker: an engine that receives its requests from the front's socket, and sends its results
//! back.
//!
//! The engine runs on the caller's thread. An I/O thread reads and writes the sockets, and a third
//! one builds constraints. The worker ends when the front tells it to, or when its standard input,
//! a pipe from the front, is closed; so no worker outlives its front, however that ends. It ignores
//! signals to terminate, because the front handles them and lets running answers end.

use crate::constraint_builds::{BuildConstraint, ConstraintBuilds};
use crate::experts::{ExpertGroupMember, LockstepInbox};
use crate::kv_connector::KvConnector;
use crate::message::{
    Exported, Facts, FromWorker, Header, Identity, MessageNumbers, PROTOCOL, ToWorker, decode, encode,
};
use crate::monotonic;
use crate::oversized::remove_oversized;
use crate::ranks::{Affinity, CommandLog};
use crate::step_watch::{SubscribeSteps, Subscriptions};
use crate::transport::connect;
use kvasir_engine::{Engine, Exit, KvExport, Message, Outbox};
use kvasir_exec::Executor;
use std::{
    fmt,
    io::{self, Read},
    path::PathBuf,
    process,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
    sync::{
        Notify,
        mpsc::{
            Receiver, UnboundedReceiver, UnboundedSender, channel, error::TrySendError, unbounded_channel,
        },
    },
    time::{Instant, sleep, sleep_until},
};
use zeromq::{DealerSocket, PushSocket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// Delay from results to the counters that follow them.
const COUNTERS_DELAY: Duration = Duration::from_millis(100);
/// Interval of the counters while requests are open but produce no results.
const COUNTERS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of exports that wait for the I/O thread; the rows of further ones are dropped.
const MAX_EXPORTS: usize = 16;
/// Time for the last messages to be written.
const LINGER: Duration = Duration::from_millis(100);

/// Configuration of a worker.
pub struct WorkerConfig {
    /// Directory of the front's sockets.
    pub directory: PathBuf,
    /// Index of the replica.
    pub replica: u32,
    /// Number of processes that the replica had before.
    pub generation: u32,
    /// Version, model and options, which the front checks.
    pub identity: Identity,
    /// Properties of the engine that the front needs.
    pub facts: Facts,
    /// Replicates the engine's inbox to the tensor-parallel ranks that run engines of their own.
    pub commands: Option<CommandLog>,
    /// Membership of this replica in an expert-parallel group.
    pub member: Option<Arc<ExpertGroupMember>>,
    /// CPU affinity of the calling thread and its helpers, if they are pinned.
    pub affinity: Option<Affinity>,
    /// Builds constraints.
    pub build: BuildConstraint,
    /// Reads the engine's counters.
    pub counters: ReadCounters,
    /// Opens streams of the engine's steps.
    pub subscribe: SubscribeSteps,
}

/// Reads the counters of an engine: its number of steps, and all counters.
pub type ReadCounters = Box<dyn Fn() -> (u64, Vec<u64>) + Send>;

/// Why a worker has failed.
#[derive(Debug)]
pub enum WorkerError {
    /// A thread or a socket could not be set up.
    Io(io::Error),
    /// The sockets of the front cannot be reached.
    Socket(ZmqError),
    /// The front refuses this worker.
    Refused(String),
    /// The engine has stopped.
    Stopped(Exit),
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "worker: {error}"),
            Self::Socket(error) => write!(f, "worker: cannot connect to the front: {error}"),
            Self::Refused(why) => write!(f, "worker: refused by the front: {why}"),
            Self::Stopped(exit) => write!(f, "worker: the engine has stopped: {exit}"),
        }
    }
}

impl std::error::Error for WorkerError {}

impl From<io::Error> for WorkerError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Serves requests of the front until the front tells the worker to exit.
pub fn run_worker<E: Executor>(mut config: WorkerConfig, engine: &mut Engine<E>) -> Result<(), WorkerError> {
    let (inbox, messages) = mpsc::channel();
    let (results, from_engine) = unbounded_channel();
    let (exports_to, exports) = channel(MAX_EXPORTS);
    // An engine that cannot export (a sharded one, for example) serves without. The program refuses
    // roles for it, so `Message::Import` never reaches ranks that schedule by requests.
    let layout = engine.export_kv(Arc::new(send_export(exports_to, results.clone()))).ok();
    let (affinity, commands) = (config.affinity.take(), config.commands.take());
    let joined = Arc::<Notify>::default();
    let lockstep = match config.member.take() {
        Some(member) => Some(LockstepInbox::start(member, &messages, inbox.clone(), Arc::clone(&joined))?),
        None => None,
    };
    let start = || {
        thread::Builder::new().name("front".into()).spawn(exit_with_front)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connection = runtime.block_on(Connection::open(config, KvConnector::new(layout), joined))?;
        let run = move || runtime.block_on(connection.serve(inbox, from_engine, exports));
        Ok::<_, WorkerError>(thread::Builder::new().name("worker-io".into()).spawn(run)?)
    };
    let io = match &affinity {
        Some(affinity) => affinity.run_unpinned(start)?,
        None => start()?,
    };
    // Timings of a resumed request come from another process, so all must use one clock.
    match &commands {
        Some(commands) => engine.set_clock(commands.clock()),
        None => engine.set_clock(monotonic::now),
    }
    let deliver = |outbox: &Outbox| drop(results.send(FromWorker::Results(outbox.clone())));
    let exit = match (&commands, lockstep) {
        (Some(commands), _) => engine.serve(commands.inbox(&messages), deliver),
        (None, Some(lockstep)) => engine.serve(lockstep, deliver),
        (None, None) => engine.serve(&messages, deliver),
    };
    let is_ordered = exit == Exit::Requested;
    // Fails only if the I/O thread has ended early.
    let _ = results.send(FromWorker::Stopped { why: exit.to_string() });
    let _ = io.join();
    if is_ordered { Ok(()) } else { Err(WorkerError::Stopped(exit)) }
}

/// Sends exports to the I/O thread without waiting. If its channel is full, the rows are dropped
/// and the front is told so.
fn send_export(
    to: tokio::sync::mpsc::Sender<KvExport>,
    results: UnboundedSender<FromWorker>,
) -> impl Fn(KvExport) + Send + Sync {
    move |export| {
        if let Err(TrySendError::Full(KvExport { tag, start, tokens, is_last, .. })) = to.try_send(export) {
            let exported = Exported { run: tag, start, tokens, rows: None, is_last };
            // Fails only if the I/O thread has ended early.
            let _ = results.send(FromWorker::Exported(exported));
        }
    }
}

/// Exits the process when standard input is closed, because the front has ended.
fn exit_with_front() {
    let mut buffer = [0; 64];
    while io::stdin().read(&mut buffer).is_ok_and(|read| read > 0) {}
    process::exit(1);
}

/// The sockets of a worker, on the I/O thread.
struct Connection {
    requests: DealerSocket,
    results: PushSocket,
    header: Header,
    sent: MessageNumbers,
    received: MessageNumbers,
    builds: ConstraintBuilds,
    counters: ReadCounters,
    subscriptions: Subscriptions,
    connector: KvConnector,
    /// Notified when the engine joins a step of another replica.
    joined: Arc<Notify>,
    /// Number of requests that have not ended.
    open: u64,
}

impl Connection {
    /// Connects and waits for the front's welcome.
    async fn open(
        config: WorkerConfig,
        connector: KvConnector,
        joined: Arc<Notify>,
    ) -> Result<Self, WorkerError> {
        let WorkerConfig {
            directory, replica, generation, identity, facts, build, counters, subscribe, ..
        } = config;
        let connected = connect(&directory, replica, generation).await;
        let (requests, results) = connected.map_err(WorkerError::Socket)?;
        let mut connection = Self {
            requests,
            results,
            header: Header { replica, generation, number: 0 },
            sent: MessageNumbers::default(),
            received: MessageNumbers::default(),
            builds: ConstraintBuilds::start(build)?,
            counters,
            subscriptions: Subscriptions::new(subscribe),
            connector,
            joined,
            open: 0,
        };
        let hello = connection.encode(&FromWorker::Hello { protocol: PROTOCOL, identity, facts });
        let frames = hello.ok_or_else(|| io::Error::other("the hello message is too large"))?;
        connection.requests.send(frames).await.map_err(WorkerError::Socket)?;
        loop {
            let frames = connection.requests.recv().await.map_err(WorkerError::Socket)?;
            match connection.read(&frames) {
                Some(ToWorker::Welcome) => return Ok(connection),
                Some(ToWorker::Refused { why }) => return Err(WorkerError::Refused(why)),
                Some(_) | None => {}
            }
        }
    }

    /// Decodes a message; `None` if it is dropped.
    fn read(&mut self, frames: &ZmqMessage) -> Option<ToWorker> {
        let (header, message) = decode(frames).ok()?;
        let is_own = (header.replica, header.generation) == (self.header.replica, self.header.generation);
        (is_own && self.received.is_new(header.number)).then_some(message)
    }

    /// Passes a message to the engine, at once or after the constraint that it waits for is built.
    fn take(&mut self, frames: &ZmqMessage, inbox: &mpsc::Sender<Message>) {
        let (mut message, recipe, rows) = match self.read(frames) {
            Some(ToWorker::Engine { message, recipe, rows }) => (message, recipe, rows),
            Some(ToWorker::Segments { descriptors }) => {
                return self.connector.open(&descriptors, self.header.replica, self.header.generation);
            }
            Some(ToWorker::Subscribe { subscriber, key, events }) => {
                return self.subscriptions.add(subscriber, key, events);
            }
            Some(ToWorker::AddCredit { subscriber, events }) => {
                return self.subscriptions.add_credit(subscriber, events);
            }
            Some(ToWorker::Unsubscribe { subscriber }) => return self.subscriptions.remove(subscriber),
            Some(ToWorker::Welcome | ToWorker::Refused { .. }) | None => return,
        };
        if let Message::Import(import) = &mut message {
            self.connector.import(import, rows);
        }
        if let Message::Add { n, .. } = &message {
            self.open += u64::from(*n);
        }
        let message = match (message, recipe) {
            (Message::Add { request, n }, Some(recipe)) => return self.builds.begin(request, n, recipe),
            (message, _) => self.builds.hold(message),
        };
        // Fails only if the engine has ended, which also ends the process.
        message.into_iter().for_each(|message| drop(inbox.send(message)));
    }

    /// The frames of the next message; `None` if it is too large.
    fn encode(&mut self, message: &FromWorker) -> Option<ZmqMessage> {
        encode(Header { number: self.sent.next(), ..self.header }, message)
    }

    async fn send(&mut self, message: &FromWorker) {
        // Without a front, this process ends anyway.
        if let Some(frames) = self.encode(message) {
            let _ = self.results.send(frames).await;
        }
    }

    async fn send_results(&mut self, outbox: Outbox, inbox: &mpsc::Sender<Message>) {
        self.open = self.open.saturating_sub(outbox.ended.len() as u64);
        self.connector.handled(outbox.imports.handled);
        let results = FromWorker::Results(outbox);
        if let Some(frames) = self.encode(&results) {
            let _ = self.results.send(frames).await;
            return;
        }
        let FromWorker::Results(mut outbox) = results else { return };
        let runs = remove_oversized(&mut outbox);
        // The front drops the last events of these runs.
        runs.iter().for_each(|tag| drop(inbox.send(Message::Abort { tag: *tag })));
        self.send(&FromWorker::Oversized { runs }).await;
        self.send(&FromWorker::Results(outbox)).await;
    }

    /// Passes messages to the engine and results to the front, until the engine has stopped.
    async fn serve(
        mut self,
        inbox: mpsc::Sender<Message>,
        mut from_engine: UnboundedReceiver<FromWorker>,
        mut exports: Receiver<KvExport>,
    ) {
        let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        // Handlers are installed and never read, so these signals have no effect.
        let _ignored = signals.map(signal);
        // The first report does not wait for a request: it carries block size and capacity.
        let mut counters_due = Some(Instant::now() + COUNTERS_DELAY);
        loop {
            let due = counters_due.unwrap_or_else(|| Instant::now() + COUNTERS_INTERVAL);
            select! {
                result = from_engine.recv() => match result {
                    Some(FromWorker::Results(outbox)) => {
                        self.send_results(outbox, &inbox).await;
                        counters_due.get_or_insert_with(|| Instant::now() + COUNTERS_DELAY);
                    }
                    Some(message @ FromWorker::Exported(_)) => self.send(&message).await,
                    Some(message) => {
                        self.send(&message).await;
                        sleep(LINGER).await;
                        return;
                    }
                    None => return,
                },
                Some(export) = exports.recv() => {
                    let exported = self.connector.export(&export);
                    self.send(&FromWorker::Exported(exported)).await;
                }
                received = self.requests.recv() => {
                    let Ok(frames) = received else {
                        // Without a front, this process ends soon.
                        sleep(LINGER).await;
                        continue;
                    };
                    self.take(&frames, &inbox);
                    counters_due.get_or_insert_with(|| Instant::now() + COUNTERS_INTERVAL);
                }
                Some(built) = self.builds.next() => {
                    let mut outbox = Outbox::default();
                    for message in self.builds.finish(built, &mut outbox) {
                        let _ = inbox.send(message);
                    }
                    if !outbox.is_empty() {
                        self.send_results(outbox, &inbox).await;
                    }
                }
                Some((subscriber, events)) = self.subscriptions.next() => {
                    self.send(&FromWorker::Steps { subscriber, events }).await;
                }
                // Reports the counters of dummy steps also while no request is open.
                () = self.joined.notified(), if counters_due.is_none() => {
                    counters_due = Some(Instant::now() + COUNTERS_INTERVAL);
                }
                () = sleep_until(due), if counters_due.is_some() => {
                    let (steps, counters) = (self.counters)();
                    let is_building = self.open > 0 && self.builds.waiting() >= self.open;
                    self.send(&FromWorker::Counters { steps, is_building, counters }).await;
                    counters_due = (self.open > 0).then(|| Instant::now() + COUNTERS_INTERVAL);
                }
            }
        }
    }
}

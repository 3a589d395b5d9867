//! The front process of a fleet: starts the workers, keeps them running, and connects [`Front`] to their
//! sockets.
//!
//! One thread runs an event loop that waits for messages of the caller, results of the workers,
//! exits of their processes, and commands of the operator. An idle fleet uses no CPU.

use crate::directory::SocketDirectory;
use crate::front::{Front, WorkerMessage};
use crate::kv_publisher::KvPublisher;
use crate::message::{Facts, FromWorker, Header, Identity, PROTOCOL, ToWorker, decode, encode};
use crate::monotonic;
use crate::replica::{Ended, Replica, WorkerCommand};
use crate::status::{FleetHandle, Order};
use crate::transport::{bind, identity};
use kvasir_engine::{
    Exit, Message, Outbox, ReplicaPhase, ReplicaStatus, Route, Router, RouterConfig, Serving,
};
use kvasir_kv::KvEvent;
use std::{fmt, io, sync::mpsc::Receiver, thread, time::Duration};
use tokio::{
    runtime::Runtime,
    select,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep_until},
};
use zeromq::{PullSocket, RouterSocket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// Time that the workers have to exit before their requests are aborted and they are killed.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Receives the index and the counters of a replica; an empty list when its process has ended.
pub type OnCounters = Box<dyn FnMut(usize, &[u64]) + Send>;
/// Receives lines for the log: whether it is a warning, and the text.
pub type OnLog = Box<dyn FnMut(bool, &str) + Send>;

/// Configuration of a fleet.
pub struct FleetConfig {
    /// Number of replicas.
    pub replicas: u32,
    /// Routing policy.
    pub route: Route,
    /// Command that starts a worker.
    pub command: WorkerCommand,
    /// Version, model and options, which every worker must match.
    pub identity: Identity,
    /// Publishes the KV events of the replicas, each as a stream of its own.
    pub kv_events: Option<KvPublisher>,
    /// Receives counters.
    pub on_counters: OnCounters,
    /// Receives lines for the log.
    pub on_log: OnLog,
}

/// Why a fleet cannot start.
#[derive(Debug)]
pub enum FleetError {
    /// The socket directory, a process or a thread cannot be created.
    Io(io::Error),
    /// The sockets cannot be bound.
    Socket(ZmqError),
    /// A worker ended before it was ready.
    Ended {
        /// Index of the replica.
        replica: usize,
        /// How its process ended.
        why: String,
    },
    /// A worker does not match the front's [`Identity`].
    Refused {
        /// Index of the replica.
        replica: usize,
        /// What differs.
        why: String,
    },
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "workers: {error}"),
            Self::Socket(error) => write!(f, "workers: sockets: {error}"),
            Self::Ended { replica, why } => write!(f, "replica {replica} could not start: {why}"),
            Self::Refused { replica, why } => write!(f, "replica {replica} does not match the front: {why}"),
        }
    }
}

impl std::error::Error for FleetError {}

impl From<io::Error> for FleetError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A fleet whose workers are ready.
pub struct Fleet {
    runtime: Runtime,
    workers: Workers,
    front: Front,
    facts: Facts,
    handle: FleetHandle,
    orders: UnboundedReceiver<Order>,
}

impl Fleet {
    /// Starts the workers, and waits until all of them are ready.
    pub fn start(config: FleetConfig) -> Result<Self, FleetError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let FleetConfig { replicas, route, command, identity, kv_events, on_counters, on_log } = config;
        let directory = SocketDirectory::create()?;
        let (orders_to, orders) = unbounded_channel();
        let handle = FleetHandle { replicas: Default::default(), orders: orders_to };
        let (ended_to, ended) = unbounded_channel();
        let started = runtime.block_on(async {
            let (requests, results) = bind(directory.path()).await.map_err(FleetError::Socket)?;
            let mut workers = Workers {
                replicas: (0..replicas).map(Replica::new).collect(),
                command,
                identity,
                requests,
                results,
                ended_to,
                ended,
                kv_events,
                on_counters,
                on_log,
                directory,
            };
            let facts = workers.start_all().await?;
            Ok::<_, FleetError>((workers, facts))
        });
        let (workers, facts) = started?;
        let router = RouterConfig { block_size: facts.block_size, ..RouterConfig::new(route) };
        let mut front = Front::new(Router::new(router, replicas as usize), replicas as usize);
        (0..replicas as usize).for_each(|replica| front.worker_ready(replica));
        let fleet = Self { runtime, workers, front, facts, handle, orders };
        fleet.publish();
        Ok(fleet)
    }

    /// Properties of the workers' engines: the smallest KV cache and context length of all.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// A handle to watch, drain and restart replicas.
    pub fn handle(&self) -> FleetHandle {
        self.handle.clone()
    }

    fn publish(&self) {
        self.handle.publish(self.workers.status(&self.front));
    }
}

impl Serving for Fleet {
    fn serve_inbox(self: Box<Self>, inbox: Receiver<Message>, deliver: &mut dyn FnMut(&Outbox)) -> Exit {
        let Self { runtime, workers, front, handle, orders, .. } = *self;
        let (forward, messages) = unbounded_channel();
        let forwarding = thread::Builder::new().name("fleet-inbox".into()).spawn(move || {
            while let Ok(message) = inbox.recv()
                && forward.send(message).is_ok()
            {}
        });
        if let Err(error) = forwarding {
            return Exit::Broken(format!("cannot start the inbox thread: {error}"));
        }
        let phase = Phase::Serving;
        let mut serving = ServingFleet { workers, front, handle, phase, deliver };
        runtime.block_on(serving.run(messages, orders))
    }
}

/// Shutdown phase of a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Serving,
    /// Exits when no request is open.
    Draining,
    /// The workers were told to exit; requests that have not ended at this time are aborted.
    Exiting(Instant),
}

/// Input of the event loop.
enum Input {
    Message(Option<Message>),
    Hello(Result<ZmqMessage, ZmqError>),
    Results(Result<ZmqMessage, ZmqError>),
    Ended(Ended),
    Order(Order),
    Timer,
}

struct ServingFleet<'a> {
    workers: Workers,
    front: Front,
    handle: FleetHandle,
    phase: Phase,
    deliver: &'a mut dyn FnMut(&Outbox),
}

impl ServingFleet<'_> {
    async fn run(
        &mut self,
        mut messages: UnboundedReceiver<Message>,
        mut orders: UnboundedReceiver<Order>,
    ) -> Exit {
        let mut has_callers = true;
        loop {
            let due = self.due();
            let workers = &mut self.workers;
            let input = select! {
                result = workers.results.recv() => Input::Results(result),
                message = messages.recv(), if has_callers => {
                    has_callers = message.is_some();
                    Input::Message(message)
                }
                hello = workers.requests.recv() => Input::Hello(hello),
                Some(ended) = workers.ended.recv() => Input::Ended(ended),
                Some(order) = orders.recv() => Input::Order(order),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Input::Timer,
            };
            self.handle_input(input).await;
            self.flush().await;
            let is_done = match self.phase {
                Phase::Serving => false,
                Phase::Draining if self.front.is_idle() => {
                    self.exit().await;
                    false
                }
                Phase::Draining => false,
                Phase::Exiting(until) => !self.workers.any_runs() || Instant::now() >= until,
            };
            if is_done {
                self.front.abort_all(monotonic::now());
                self.flush().await;
                return Exit::Requested;
            }
        }
    }

    /// When the next timer is due.
    fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Exiting(until) => Some(until),
            _ => self.workers.replicas.iter().filter_map(Replica::due).min(),
        }
    }

    async fn handle_input(&mut self, input: Input) {
        let now = monotonic::now();
        match input {
            Input::Message(Some(Message::Drain)) => self.phase = Phase::Draining,
            Input::Message(Some(Message::Exit) | None) => self.exit().await,
            Input::Message(Some(message)) => self.front.take(message, now),
            Input::Hello(Ok(frames)) => match self.workers.handle_hello(&frames).await {
                Ok(Some((replica, _))) => {
                    if self.workers.replicas[replica].phase == ReplicaPhase::Ready {
                        (self.workers.on_log)(false, &format!("replica {replica} is ready"));
                        self.front.worker_ready(replica);
                    }
                    self.publish();
                }
                Ok(None) => {}
                Err(error) => (self.workers.on_log)(true, &error.to_string()),
            },
            Input::Results(Ok(frames)) => self.handle_results(&frames),
            // The peer has ended; its exit is a separate input.
            Input::Hello(Err(_)) | Input::Results(Err(_)) => {}
            Input::Ended(ended) => self.handle_process_end(ended),
            Input::Order(Order::Drain(replica)) => {
                self.front.drain(replica);
                let state = &mut self.workers.replicas[replica];
                state.is_drained = true;
                if state.phase == ReplicaPhase::Ready {
                    state.accept();
                }
                self.publish();
            }
            Input::Order(Order::Restart(replica)) => {
                self.front.drain(replica);
                self.flush().await;
                self.workers.replicas[replica].is_drained = false;
                self.workers.end(replica).await;
                self.publish();
            }
            Input::Timer => {
                if !matches!(self.phase, Phase::Exiting(_)) {
                    self.workers.start_due();
                    self.publish();
                }
            }
        }
    }

    fn handle_results(&mut self, frames: &ZmqMessage) {
        let Some((replica, message)) = self.workers.read(frames) else { return self.publish() };
        match message {
            FromWorker::Results(mut outbox) => {
                let ended = outbox.ended.len();
                if let Some(publisher) = &mut self.workers.kv_events {
                    publisher.publish(replica, &outbox.kv_events);
                }
                let is_gapless = self.front.results(replica, &mut outbox, monotonic::now());
                (self.deliver)(&outbox);
                if !is_gapless {
                    // Its requests continue on other workers, from the last token received.
                    (self.workers.on_log)(
                        true,
                        &format!(
                            "replica {replica}: results have a gap in their tokens; killing its process"
                        ),
                    );
                    self.workers.replicas[replica].kill();
                }
                if ended > 0 {
                    self.publish();
                }
            }
            FromWorker::Counters(counters) => (self.workers.on_counters)(replica, &counters),
            FromWorker::Stopped { why } => {
                (self.workers.on_log)(true, &format!("replica {replica}: the engine has stopped: {why}"));
            }
            FromWorker::Hello { .. } => {}
        }
    }

    fn handle_process_end(&mut self, Ended { replica, generation, why }: Ended) {
        let state = &mut self.workers.replicas[replica];
        if state.header.generation != generation {
            return;
        }
        let is_ordered = state.is_ending;
        state.ended(why.clone());
        if !is_ordered {
            let delay = state.restart_at.map(|at| at.saturating_duration_since(Instant::now()));
            let seconds = delay.unwrap_or_default().as_secs_f64();
            let line =
                format!("replica {replica}: its process has ended: {why}; restarting it in {seconds:.1} s");
            (self.workers.on_log)(true, &line);
        }
        (self.workers.on_counters)(replica, &[]);
        if let Some(publisher) = &mut self.workers.kv_events {
            // The next process begins with an empty cache.
            publisher.publish(replica, &[KvEvent::AllBlocksCleared]);
        }
        self.front.worker_lost(replica, monotonic::now());
        self.publish();
    }

    /// Tells all workers to exit.
    async fn exit(&mut self) {
        if matches!(self.phase, Phase::Exiting(_)) {
            return;
        }
        self.phase = Phase::Exiting(Instant::now() + EXIT_TIME);
        for replica in 0..self.workers.replicas.len() {
            self.workers.end(replica).await;
        }
    }

    /// Sends the front's messages to the workers, and delivers its outbox.
    async fn flush(&mut self) {
        for send in std::mem::take(&mut self.front.sends) {
            self.workers.send(send).await;
        }
        if !self.front.outbox.is_empty() {
            (self.deliver)(&self.front.outbox);
            self.front.outbox.clear();
            self.publish();
        }
    }

    fn publish(&self) {
        self.handle.publish(self.workers.status(&self.front));
    }
}

/// The processes of a fleet and their sockets.
struct Workers {
    replicas: Vec<Replica>,
    command: WorkerCommand,
    identity: Identity,
    requests: RouterSocket,
    results: PullSocket,
    ended_to: UnboundedSender<Ended>,
    ended: UnboundedReceiver<Ended>,
    kv_events: Option<KvPublisher>,
    on_counters: OnCounters,
    on_log: OnLog,
    /// The last field, so that it is removed after the sockets are closed.
    directory: SocketDirectory,
}

impl Workers {
    /// Starts all processes and waits for their `Hello` messages.
    async fn start_all(&mut self) -> Result<Facts, FleetError> {
        for replica in &mut self.replicas {
            replica.start(&self.command, self.directory.path(), self.ended_to.clone())?;
        }
        let mut smallest: Option<Facts> = None;
        while self.replicas.iter().any(|replica| replica.phase != ReplicaPhase::Ready) {
            select! {
                hello = self.requests.recv() => {
                    let frames = hello.map_err(FleetError::Socket)?;
                    if let Some((_, facts)) = self.handle_hello(&frames).await? {
                        let slots = smallest.as_ref().map_or(u32::MAX, |facts| facts.slots).min(facts.slots);
                        let max_len = smallest.as_ref().map_or(u32::MAX, |facts| facts.max_len).min(facts.max_len);
                        smallest = Some(Facts { slots, max_len, ..facts });
                    }
                }
                Some(Ended { replica, why, .. }) = self.ended.recv() => {
                    return Err(FleetError::Ended { replica, why });
                }
            }
        }
        Ok(smallest.unwrap_or_default())
    }

    /// Answers a worker's `Hello`. Returns the replica if it is accepted, `None` if the message is
    /// dropped.
    async fn handle_hello(&mut self, frames: &ZmqMessage) -> Result<Option<(usize, Facts)>, FleetError> {
        let name = frames.get(0).cloned().unwrap_or_default();
        let read = decode::<FromWorker>(frames);
        let Ok((header, FromWorker::Hello { protocol, identity, facts })) = read else { return Ok(None) };
        let replica = header.replica as usize;
        let is_expected = header.is_from(&name)
            && self.replicas.get_mut(replica).is_some_and(|state| {
                state.header.generation == header.generation && state.received.is_new(header.number)
            });
        if !is_expected {
            return Ok(None);
        }
        let difference = match protocol {
            PROTOCOL => self.identity.difference(&identity),
            other => Some(format!("it has message protocol version `{other}`, the front has `{PROTOCOL}`")),
        };
        if let Some(why) = difference {
            self.write(replica, &ToWorker::Refused { why: why.clone() }).await;
            return Err(FleetError::Refused { replica, why });
        }
        self.write(replica, &ToWorker::Welcome).await;
        self.replicas[replica].accept();
        Ok(Some((replica, facts)))
    }

    /// Decodes a message on the results socket; `None` if it is dropped. Counts dropped messages.
    fn read(&mut self, frames: &ZmqMessage) -> Option<(usize, FromWorker)> {
        let (header, message) = match decode::<FromWorker>(frames) {
            Ok((header, message)) => (header, Some(message)),
            Err((Some(header), _)) => (header, None),
            Err((None, why)) => {
                (self.on_log)(true, &format!("dropped a message of an unknown worker: {why:?}"));
                return None;
            }
        };
        let index = header.replica as usize;
        let replica = self.replicas.get_mut(index)?;
        let is_own = replica.header.generation == header.generation;
        let message = message.filter(|_| is_own && replica.received.is_new(header.number));
        if message.is_none() {
            replica.dropped += 1;
        }
        Some((index, message?))
    }

    /// Sends a message to a worker's engine. A message to a process that has ended is lost.
    async fn send(&mut self, WorkerMessage { replica, message, recipe }: WorkerMessage) {
        self.write(replica, &ToWorker::Engine { message, recipe }).await;
    }

    async fn write(&mut self, replica: usize, message: &ToWorker) {
        let state = &mut self.replicas[replica];
        let header = Header { number: state.sent.next(), ..state.header };
        let Some(mut frames) = encode(header, message) else {
            return (self.on_log)(
                true,
                &format!("replica {replica}: a message to it is too large and was dropped"),
            );
        };
        frames.push_front(identity(header.replica, header.generation));
        // Fails if the process has ended, which is a separate input.
        let _ = self.requests.send(frames).await;
    }

    /// Tells a worker to exit, or kills it if it is still starting.
    async fn end(&mut self, replica: usize) {
        let state = &mut self.replicas[replica];
        match state.phase {
            ReplicaPhase::Ready | ReplicaPhase::Drained => {
                (state.is_ending, state.kill_at) = (true, Some(Instant::now() + EXIT_TIME));
                let message = Message::Exit;
                self.send(WorkerMessage { replica, message, recipe: None }).await;
            }
            ReplicaPhase::Starting => {
                state.is_ending = true;
                state.kill();
            }
            // A replica without a process is started now.
            ReplicaPhase::Down => state.restart_at = Some(Instant::now()),
        }
    }

    /// Starts the processes whose restart is due, and kills those that should have exited.
    fn start_due(&mut self) {
        let now = Instant::now();
        for (index, replica) in self.replicas.iter_mut().enumerate() {
            if replica.kill_at.is_some_and(|at| at <= now) {
                (self.on_log)(true, &format!("replica {index} does not exit and is killed"));
                replica.kill();
            }
            if replica.restart_at.is_none_or(|at| at > now) {
                continue;
            }
            let started = replica.start(&self.command, self.directory.path(), self.ended_to.clone());
            if let Err(error) = started {
                (self.on_log)(true, &format!("replica {index} could not start: {error}"));
                replica.ended(error.to_string());
            }
        }
    }

    fn any_runs(&self) -> bool {
        self.replicas.iter().any(|replica| replica.process.is_some())
    }

    fn status(&self, front: &Front) -> Vec<ReplicaStatus> {
        let status = |(index, replica): (usize, &Replica)| {
            let (requests, tokens) = front.load(index);
            ReplicaStatus {
                replica: index,
                phase: replica.phase,
                process: replica.process,
                requests,
                tokens,
                restarts: replica.header.generation,
                dropped_messages: replica.dropped,
                last_exit: replica.last_exit.clone(),
            }
        };
        self.replicas.iter().enumerate().map(status).collect()
    }
}

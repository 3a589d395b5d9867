//! The front process of a fleet: starts the workers, keeps them running, and connects [`Front`] to their
//! sockets.
//!
//! One thread runs an event loop that waits for messages of the caller, results of the workers,
//! exits of their processes, and commands of the operator. An idle fleet uses no CPU.

use crate::directory::SocketDirectory;
use crate::error::FleetError;
use crate::experts::create_experts_memory;
use crate::front::Front;
use crate::kv_publisher::KvPublisher;
use crate::message::{Facts, FromWorker, Identity, ToWorker};
use crate::monotonic;
use crate::order::FrontCommand;
use crate::replica::{Ended, Replica, WorkerCommand};
use crate::status::FleetHandle;
use crate::step_watch::Subscribers;
use crate::transport::bind;
use crate::watchdog::Watchdog;
use crate::workers::{EXIT_TIME, OnCounters, OnLog, Workers, create_segments};
use kvasir_engine::{
    Exit, Message, Outbox, ReplicaPhase, Role, RoleRouter, Route, RouterConfig, Routing, Serving,
};
use kvasir_kv::KvEvent;
use std::{sync::mpsc::Receiver, thread, time::Duration};
use tokio::{
    runtime::Runtime,
    select,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{Instant, sleep_until},
};
use zeromq::{SocketRecv, ZmqError, ZmqMessage};

/// Configuration of a fleet.
pub struct FleetConfig {
    /// Role of each replica.
    pub roles: Vec<Role>,
    /// Routing policy.
    pub route: Route,
    /// Whether the experts are divided among the replicas, which then run in lockstep and restart
    /// together.
    pub expert_parallel: bool,
    /// Command that starts a worker.
    pub command: WorkerCommand,
    /// Version, model and options, which every worker must match.
    pub identity: Identity,
    /// A worker that has open requests and completes no step for this time is killed; its requests
    /// continue on other workers. At least 3 s.
    pub step_timeout: Duration,
    /// Publishes the KV events of the replicas, each as a stream of its own.
    pub kv_events: Option<KvPublisher>,
    /// Receives counters.
    pub on_counters: OnCounters,
    /// Receives lines for the log.
    pub on_log: OnLog,
}

/// A fleet whose workers are ready.
pub struct Fleet {
    runtime: Runtime,
    workers: Workers,
    front: Front,
    facts: Facts,
    handle: FleetHandle,
    commands: UnboundedReceiver<FrontCommand>,
    watchdog: Watchdog,
}

impl Fleet {
    /// Starts the workers, and waits until all of them are ready.
    pub fn start(config: FleetConfig) -> Result<Self, FleetError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let FleetConfig { roles, route, expert_parallel, command, identity, step_timeout, .. } = config;
        let FleetConfig { kv_events, on_counters, on_log, .. } = config;
        let (directory, replicas) = (SocketDirectory::create()?, roles.len());
        let segments = create_segments(&roles)?;
        let experts_memory = expert_parallel.then(create_experts_memory).transpose()?;
        let (commands_to, commands) = unbounded_channel();
        let (ended_to, ended) = unbounded_channel();
        let started = runtime.block_on(async {
            let (requests, results) = bind(directory.path()).await.map_err(FleetError::Socket)?;
            let mut workers = Workers {
                replicas: (0..replicas as u32).map(Replica::new).collect(),
                command,
                identity,
                requests,
                results,
                ended_to,
                ended,
                kv_events,
                segments,
                experts_memory,
                on_counters,
                on_log,
                directory,
            };
            let facts = workers.start_all().await?;
            Ok::<_, FleetError>((workers, facts))
        });
        let (workers, facts) = started?;
        let routing = Routing { route, has_kv_events: facts.has_kv_events };
        let handle = FleetHandle {
            replicas: Default::default(),
            commands: commands_to,
            routing,
            next_subscriber: Default::default(),
        };
        let watchdog = Watchdog::new(replicas, step_timeout);
        let router = RouterConfig {
            block_size: facts.block_size,
            hits_end_at_checkpoints: facts.has_states,
            ..RouterConfig::new(route)
        };
        let mut front = Front::new(RoleRouter::new(router, roles), replicas);
        front.workers_fail_together = expert_parallel;
        front.workers_ready(0..replicas);
        let fleet = Self { runtime, workers, front, facts, handle, commands, watchdog };
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
        let Self { runtime, workers, front, handle, commands, watchdog, .. } = *self;
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
        let subscribers = Subscribers::default();
        let mut serving = ServingFleet { workers, front, handle, watchdog, subscribers, phase, deliver };
        runtime.block_on(serving.run(messages, commands))
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
    Command(FrontCommand),
    Timer,
}

struct ServingFleet<'a> {
    workers: Workers,
    front: Front,
    handle: FleetHandle,
    watchdog: Watchdog,
    subscribers: Subscribers,
    phase: Phase,
    deliver: &'a mut dyn FnMut(&Outbox),
}

impl ServingFleet<'_> {
    async fn run(
        &mut self,
        mut messages: UnboundedReceiver<Message>,
        mut commands: UnboundedReceiver<FrontCommand>,
    ) -> Exit {
        let mut has_callers = true;
        loop {
            let any_has_work = (0..self.workers.replicas.len()).any(|replica| self.has_work(replica));
            self.watchdog.arm(any_has_work, Instant::now());
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
                Some(command) = commands.recv() => Input::Command(command),
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
            _ => self.workers.due().into_iter().chain(self.watchdog.due()).min(),
        }
    }

    /// Whether a worker has open requests and can run steps.
    fn has_work(&self, replica: usize) -> bool {
        let state = &self.workers.replicas[replica];
        state.accepts_messages() && !state.is_ending && self.front.run_count(replica) > 0
    }

    async fn handle_input(&mut self, input: Input) {
        let now = monotonic::now();
        match input {
            Input::Message(Some(Message::Drain)) => self.phase = Phase::Draining,
            Input::Message(Some(Message::Exit) | None) => self.exit().await,
            Input::Message(Some(message)) => self.front.take(message, now),
            Input::Hello(Ok(frames)) => match self.workers.handle_hello(&frames).await {
                Ok(Some((replica, _))) => {
                    self.watchdog.record_progress(replica);
                    for message in self.subscribers.resume_messages(replica) {
                        self.workers.write(replica, &message).await;
                    }
                    if self.workers.replicas[replica].phase == ReplicaPhase::Ready {
                        (self.workers.on_log)(false, &format!("replica {replica} is ready"));
                    }
                    let ready = self.workers.newly_ready(replica);
                    if !ready.is_empty() {
                        self.front.workers_ready(ready);
                    }
                    self.publish();
                }
                Ok(None) => self.publish(),
                Err(error) => (self.workers.on_log)(true, &error.to_string()),
            },
            Input::Results(Ok(frames)) => self.handle_results(&frames).await,
            // The peer has ended; its exit is a separate input.
            Input::Hello(Err(_)) | Input::Results(Err(_)) => {}
            Input::Ended(ended) => self.handle_process_end(ended),
            Input::Command(FrontCommand::Drain(replica)) => {
                self.front.drain(replica);
                let state = &mut self.workers.replicas[replica];
                state.is_drained = true;
                if state.phase == ReplicaPhase::Ready {
                    state.accept();
                }
                self.publish();
            }
            Input::Command(FrontCommand::Restart(replica)) => {
                self.front.drain(replica);
                self.flush().await;
                self.workers.replicas[replica].is_drained = false;
                self.workers.end(replica).await;
                self.publish();
            }
            Input::Command(FrontCommand::Subscribe { subscriber, replica, key, events }) => {
                let message = self.subscribers.add(subscriber, replica, key, events);
                self.send_if_accepting(replica, &message).await;
            }
            Input::Command(FrontCommand::AddCredit { subscriber, events }) => {
                if let Some((replica, message)) = self.subscribers.add_credit(subscriber, events) {
                    self.send_if_accepting(replica, &message).await;
                }
            }
            Input::Command(FrontCommand::Unsubscribe(subscriber)) => {
                if let Some((replica, message)) = self.subscribers.remove(subscriber) {
                    self.send_if_accepting(replica, &message).await;
                }
            }
            Input::Timer => {
                self.kill_hung();
                if !matches!(self.phase, Phase::Exiting(_)) {
                    self.workers.start_due();
                    self.publish();
                }
            }
        }
    }

    /// Sends a message to a worker, unless it accepts none.
    async fn send_if_accepting(&mut self, replica: usize, message: &ToWorker) {
        if self.workers.replicas[replica].accepts_messages() {
            self.workers.write(replica, message).await;
        }
    }

    /// Kills the workers that the watchdog reports as hung.
    fn kill_hung(&mut self) {
        let mut watchdog = std::mem::take(&mut self.watchdog);
        let hung = watchdog.poll(Instant::now(), |replica| self.has_work(replica));
        self.watchdog = watchdog;
        for replica in hung {
            let (requests, seconds) = (self.front.run_count(replica), self.watchdog.timeout_seconds());
            let line = format!(
                "replica {replica} has completed no step for {seconds:.0} s with {requests} open requests; \
                 killing its process"
            );
            (self.workers.on_log)(true, &line);
            let state = &mut self.workers.replicas[replica];
            state.hangs += 1;
            state.kill();
        }
    }

    async fn handle_results(&mut self, frames: &ZmqMessage) {
        let Some((replica, message)) = self.workers.read(frames) else { return self.publish() };
        match message {
            FromWorker::Results(mut outbox) => {
                let ended = outbox.ended.len();
                self.watchdog.record_progress(replica);
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
            FromWorker::Exported(exported) => self.front.exported(replica, exported),
            FromWorker::Oversized { runs } => {
                (self.workers.on_log)(
                    true,
                    &format!("replica {replica}: the results of {} requests are too large", runs.len()),
                );
                runs.into_iter().for_each(|run| self.front.fail_oversized(run..run + 1, monotonic::now()));
            }
            FromWorker::Counters { steps, is_building, counters } => {
                self.watchdog.record_steps(replica, steps, is_building);
                (self.workers.on_counters)(replica, &counters);
            }
            FromWorker::Steps { subscriber, events } => {
                if let Some(message) = self.subscribers.deliver(replica, subscriber, events) {
                    self.send_if_accepting(replica, &message).await;
                }
            }
            FromWorker::Stopped { why } => {
                let state = &mut self.workers.replicas[replica];
                if state.is_ending {
                    return;
                }
                (self.workers.on_log)(true, &format!("replica {replica}: the engine has stopped: {why}"));
                // This is its last message, so its requests move to other workers at once.
                state.kill();
                self.front.worker_lost(replica, monotonic::now());
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
            let seconds = state.restart_delay().as_secs_f64();
            let line =
                format!("replica {replica}: its process has ended: {why}; restarting it in {seconds:.1} s");
            (self.workers.on_log)(true, &line);
        }
        (self.workers.on_counters)(replica, &[]);
        if let Some(publisher) = &mut self.workers.kv_events {
            // The next process begins with an empty cache.
            publisher.publish(replica, &[KvEvent::AllBlocksCleared]);
        }
        for other in self.workers.kill_group_of(replica) {
            let line = format!(
                "replica {other} restarts with replica {replica}, which holds other experts of the model"
            );
            (self.workers.on_log)(false, &line);
            // The requests of `other` did not cause the exit: it does not count against them.
            self.front.drain(other);
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
            let runs = match &send.message {
                Message::Add { request, n } => request.tag..request.tag + u64::from(*n),
                _ => 0..0,
            };
            if !self.workers.send(send).await {
                self.front.fail_oversized(runs, monotonic::now());
            }
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

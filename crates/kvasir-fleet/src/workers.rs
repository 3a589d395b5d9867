//! The processes of a fleet and their sockets: starting, greeting, messages, and the end of processes.

use crate::directory::SocketDirectory;
use crate::error::FleetError;
use crate::experts::create_experts_memory;
use crate::front::{Front, WorkerMessage};
use crate::kv_publisher::KvPublisher;
use crate::message::{
    DropReason, Facts, FromWorker, Header, Identity, PROTOCOL, ToWorker, decode, encode, protocol_difference,
};
use crate::replica::{Ended, Replica, WorkerCommand, WorkerStart};
use crate::segment;
use crate::transport::identity;
use kvasir_engine::{Message, ReplicaPhase, ReplicaStatus, Role};
use std::{fs::File, io, os::fd::AsRawFd, time::Duration};
use tokio::{
    select,
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::Instant,
};
use zeromq::{PullSocket, RouterSocket, SocketRecv, SocketSend, ZmqMessage};

/// Time that the workers have to exit before their requests are aborted and they are killed.
pub(crate) const EXIT_TIME: Duration = Duration::from_secs(2);

/// Receives the index and the counters of a replica; an empty list when its process has ended.
pub type OnCounters = Box<dyn FnMut(usize, &[u64]) + Send>;
/// Receives lines for the log: whether it is a warning, and the text.
pub type OnLog = Box<dyn FnMut(bool, &str) + Send>;

/// The processes of a fleet and their sockets.
pub(crate) struct Workers {
    pub(crate) replicas: Vec<Replica>,
    pub(crate) command: WorkerCommand,
    pub(crate) identity: Identity,
    pub(crate) requests: RouterSocket,
    pub(crate) results: PullSocket,
    pub(crate) ended_to: UnboundedSender<Ended>,
    pub(crate) ended: UnboundedReceiver<Ended>,
    pub(crate) kv_events: Option<KvPublisher>,
    /// Segments of the replicas of the prefill role.
    pub(crate) segments: Vec<Option<File>>,
    /// The shared memory of the replicas, if they are expert-parallel. Each generation of the group
    /// has a new file.
    pub(crate) experts_memory: Option<File>,
    pub(crate) on_counters: OnCounters,
    pub(crate) on_log: OnLog,
    /// The last field, so that it is removed after the sockets are closed.
    pub(crate) directory: SocketDirectory,
}

/// Creates the segments of replicas with these roles. The caller must do so before it starts their
/// processes, which inherit them.
pub(crate) fn create_segments(roles: &[Role]) -> io::Result<Vec<Option<File>>> {
    roles.iter().map(|role| (*role == Role::Prefill).then(segment::create).transpose()).collect()
}

impl Workers {
    /// Starts all processes and waits for their `Hello` messages.
    pub(crate) async fn start_all(&mut self) -> Result<Facts, FleetError> {
        for index in 0..self.replicas.len() {
            self.start(index)?;
        }
        let mut smallest: Option<Facts> = None;
        while self.replicas.iter().any(|replica| replica.phase != ReplicaPhase::Ready) {
            select! {
                hello = self.requests.recv() => {
                    let frames = hello.map_err(FleetError::Socket)?;
                    if let Some((_, facts)) = self.handle_hello(&frames).await? {
                        let slots = smallest.as_ref().map_or(u32::MAX, |facts| facts.slots).min(facts.slots);
                        let max_len = smallest.as_ref().map_or(u32::MAX, |facts| facts.max_len).min(facts.max_len);
                        let has_kv_events =
                            smallest.as_ref().is_none_or(|facts| facts.has_kv_events) && facts.has_kv_events;
                        smallest = Some(Facts { slots, max_len, has_kv_events, ..facts });
                    }
                }
                Some(Ended { replica, why, .. }) = self.ended.recv() => {
                    return Err(FleetError::Ended { replica, why });
                }
            }
        }
        Ok(smallest.unwrap_or_default())
    }

    /// Starts the process of a replica.
    fn start(&mut self, index: usize) -> io::Result<()> {
        let Header { replica, generation, .. } = self.replicas[index].header;
        let directory = self.directory.path();
        let experts_memory = self.experts_memory.as_ref().map(AsRawFd::as_raw_fd);
        let process = self.command.build(&WorkerStart { directory, replica, generation, experts_memory });
        self.replicas[index].start(process, self.ended_to.clone())
    }

    /// Answers a worker's `Hello`. Returns the replica if it is accepted, `None` if the message is
    /// dropped.
    pub(crate) async fn handle_hello(
        &mut self,
        frames: &ZmqMessage,
    ) -> Result<Option<(usize, Facts)>, FleetError> {
        let name = frames.get(0).cloned().unwrap_or_default();
        let (header, protocol, identity, facts) = match decode::<FromWorker>(frames) {
            Ok((header, FromWorker::Hello { protocol, identity, facts })) => {
                (header, protocol, identity, facts)
            }
            Ok((header, _)) => {
                self.count_dropped(Some(header), DropReason::Malformed);
                return Ok(None);
            }
            Err((header, why)) => {
                self.count_dropped(header, why);
                return Ok(None);
            }
        };
        let replica = header.replica as usize;
        let is_expected = header.is_from(&name)
            && self.replicas.get_mut(replica).is_some_and(|state| {
                state.header.generation == header.generation && state.received.is_new(header.number)
            });
        if !is_expected {
            self.count_dropped(Some(header), DropReason::Malformed);
            return Ok(None);
        }
        let difference = protocol_difference(PROTOCOL, protocol);
        let difference = difference.or_else(|| self.identity.difference(&identity));
        if let Some(why) = difference {
            self.write(replica, &ToWorker::Refused { why: why.clone() }).await;
            return Err(FleetError::Refused { replica, why });
        }
        self.write(replica, &ToWorker::Welcome).await;
        if self.segments.iter().any(Option::is_some) {
            let descriptor = |file: &Option<File>| file.as_ref().map(|file| file.as_raw_fd() as u32);
            let descriptors = self.segments.iter().map(descriptor).collect();
            self.write(replica, &ToWorker::Segments { descriptors }).await;
        }
        self.replicas[replica].accept();
        Ok(Some((replica, facts)))
    }

    /// Decodes a message on the results socket; `None` if it is dropped. Counts dropped messages.
    pub(crate) fn read(&mut self, frames: &ZmqMessage) -> Option<(usize, FromWorker)> {
        let (header, message) = match decode::<FromWorker>(frames) {
            Ok((header, message)) => (header, Some(message)),
            Err((Some(header), _)) => (header, None),
            Err((None, why)) => {
                self.count_dropped(None, why);
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

    /// Counts a dropped message for the replica that its header names, or logs it if there is none.
    fn count_dropped(&mut self, header: Option<Header>, why: DropReason) {
        let replica = header.and_then(|header| self.replicas.get_mut(header.replica as usize));
        match replica {
            Some(replica) => replica.dropped += 1,
            None => (self.on_log)(true, &format!("dropped a message of an unknown worker: {why:?}")),
        }
    }

    /// Sends a message to a worker's engine. A message to a process that has ended is lost. False if
    /// the message is too large.
    pub(crate) async fn send(&mut self, message: WorkerMessage) -> bool {
        let WorkerMessage { replica, message, recipe, rows } = message;
        self.write(replica, &ToWorker::Engine { message, recipe, rows }).await
    }

    pub(crate) async fn write(&mut self, replica: usize, message: &ToWorker) -> bool {
        let state = &mut self.replicas[replica];
        let header = Header { number: state.sent.next(), ..state.header };
        let Some(mut frames) = encode(header, message) else {
            (self.on_log)(true, &format!("replica {replica}: a message to it is too large and was dropped"));
            return false;
        };
        frames.push_front(identity(header.replica, header.generation));
        // Fails if the process has ended, which is a separate input.
        let _ = self.requests.send(frames).await;
        true
    }

    /// Tells a worker to exit, or kills it if it is still starting.
    pub(crate) async fn end(&mut self, replica: usize) {
        let state = &mut self.replicas[replica];
        match state.phase {
            ReplicaPhase::Ready | ReplicaPhase::Drained => {
                (state.is_ending, state.kill_at) = (true, Some(Instant::now() + EXIT_TIME));
                let message = Message::Exit;
                self.send(WorkerMessage { replica, message, recipe: None, rows: None }).await;
            }
            ReplicaPhase::Starting => {
                state.is_ending = true;
                state.kill();
            }
            // A replica without a process is started now.
            ReplicaPhase::Down => state.restart_at = Some(Instant::now()),
        }
    }

    /// When the next restart or kill is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let restarts = self.replicas.iter().filter_map(|replica| replica.restart_at);
        let restart = match self.experts_memory {
            None => restarts.min(),
            // Expert-parallel replicas restart together, once all of their processes have ended.
            Some(_) if self.any_runs() => None,
            Some(_) => restarts.max(),
        };
        self.replicas.iter().filter_map(|replica| replica.kill_at).chain(restart).min()
    }

    /// Starts the processes whose restart is due, and kills those that should have exited.
    pub(crate) fn start_due(&mut self) {
        let now = Instant::now();
        for (index, replica) in self.replicas.iter_mut().enumerate() {
            if replica.kill_at.is_some_and(|at| at <= now) {
                (self.on_log)(true, &format!("replica {index} does not exit and is killed"));
                replica.kill();
            }
        }
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        if let Some(memory) = &mut self.experts_memory {
            match create_experts_memory() {
                Ok(created) => *memory = created,
                Err(error) => {
                    (self.on_log)(true, &format!("the replicas could not restart: {error}"));
                    return self.replicas.iter_mut().for_each(|replica| replica.ended(error.to_string()));
                }
            }
        }
        for index in 0..self.replicas.len() {
            if self.replicas[index].restart_at.is_none_or(|at| at > now) {
                continue;
            }
            if let Err(error) = self.start(index) {
                (self.on_log)(true, &format!("replica {index} could not start: {error}"));
                self.replicas[index].ended(error.to_string());
                self.kill_group_of(index);
                if self.experts_memory.is_some() {
                    // The group restarts when all of its processes have ended.
                    return;
                }
            }
        }
    }

    /// Kills the processes of the other replicas of the expert-parallel group of `replica`, whose
    /// process has ended. Returns the killed replicas, none if there is no such group.
    pub(crate) fn kill_group_of(&mut self, replica: usize) -> Vec<usize> {
        if self.experts_memory.is_none() {
            return Vec::new();
        }
        let others = self.replicas.iter_mut().enumerate();
        let running = |(other, state): &(usize, &mut Replica)| {
            *other != replica && state.process.is_some() && !state.is_ending
        };
        let killed = others.filter(running).map(|(other, state)| {
            state.kill_with_group();
            other
        });
        killed.collect()
    }

    /// Returns the replicas that accept requests now that `replica` is ready. Expert-parallel
    /// replicas accept requests once all of them are ready.
    pub(crate) fn newly_ready(&self, replica: usize) -> Vec<usize> {
        let is_ready = |index: &usize| self.replicas[*index].phase == ReplicaPhase::Ready;
        match self.experts_memory {
            None => Some(replica).into_iter().filter(is_ready).collect(),
            Some(_) if !self.replicas.iter().all(Replica::accepts_messages) => Vec::new(),
            Some(_) => (0..self.replicas.len()).filter(is_ready).collect(),
        }
    }

    pub(crate) fn any_runs(&self) -> bool {
        self.replicas.iter().any(|replica| replica.process.is_some())
    }

    pub(crate) fn status(&self, front: &Front) -> Vec<ReplicaStatus> {
        let status = |(index, replica): (usize, &Replica)| {
            let (requests, tokens) = front.load(index);
            ReplicaStatus {
                replica: index,
                phase: replica.phase,
                process: replica.process,
                requests,
                tokens,
                restarts: replica.header.generation,
                hangs: replica.hangs,
                dropped_messages: replica.dropped,
                last_exit: replica.last_exit.clone(),
                role: front.role(index),
                kv_transfers: front.transfers(index),
            }
        };
        self.replicas.iter().enumerate().map(status).collect()
    }
}

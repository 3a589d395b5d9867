//! Control by requests: every rank runs an engine of its own, on the inputs of rank 0's.
//!
//! An engine is deterministic but for three inputs: its messages, with the points at which it finds none;
//! the time; and the results of its steps. Rank 0 writes all three down, and the other ranks read them
//! instead: [`CommandLog`] writes messages and times to the ring of commands, from which [`Commands`]
//! reads them; results are in the ring of steps (`step_hashes`). So all engines schedule the same steps.

use crate::constraint_builds::BuildConstraint;
use crate::monotonic;
use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::member::Member;
use crate::ranks::packed_bytes::{pack, unpack};
use kvasir_engine::{Inbox, Message, Nanos};
use serde::{Deserialize, Serialize};
use std::{
    process,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

/// Number of the ring of commands.
const COMMANDS: usize = 1;

/// Kinds of records in the ring of commands.
mod record {
    /// Words: the time in nanoseconds, low and high.
    pub(super) const TIME: u32 = 1;
    /// The inbox was empty.
    pub(super) const NOTHING: u32 = 2;
    /// The inbox has no senders.
    pub(super) const CLOSED: u32 = 3;
    /// Words: the length in bytes, and an encoded `Received`.
    pub(super) const MESSAGE: u32 = 4;
}

/// A message, with the recipe of the constraint if it adds a constrained request.
#[derive(Serialize, Deserialize)]
struct Received {
    message: Message,
    recipe: Option<String>,
}

/// Rank 0's end of the ring of commands. Clones share it.
#[derive(Clone)]
pub struct CommandLog {
    member: Arc<Member>,
    ring: Arc<Mutex<BroadcastRing>>,
}

impl CommandLog {
    /// The log of rank 0, which `member` must be. A group has one.
    pub fn new(member: Arc<Member>) -> Self {
        Self { member, ring: Arc::new(Mutex::new(BroadcastRing::new(COMMANDS))) }
    }

    /// Writes a record. The loss of a rank is reported by the next step.
    fn write(&self, kind: u32, words: &[u32]) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ring.write(&self.member.endpoint, kind, words);
    }

    /// The machine's monotonic clock; each reading is logged.
    pub(crate) fn clock(&self) -> impl FnMut() -> Nanos + Send + use<> {
        let log = self.clone();
        move || {
            let now = monotonic::now();
            log.write(record::TIME, &[now as u32, (now >> 32) as u32]);
            now
        }
    }

    /// An inbox whose messages are logged, and that it was empty.
    pub(crate) fn inbox<'a>(&self, inbox: &'a Receiver<Message>) -> RecordedInbox<'a> {
        RecordedInbox { log: self.clone(), inbox }
    }
}

/// The inbox of rank 0's engine.
pub(crate) struct RecordedInbox<'a> {
    log: CommandLog,
    inbox: &'a Receiver<Message>,
}

impl Inbox for RecordedInbox<'_> {
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Message, RecvTimeoutError> {
        let received = self.inbox.receive(timeout);
        match &received {
            Ok(message) => {
                let constraint = match message {
                    Message::Add { request, .. } => request.params.constraint.0.as_ref(),
                    _ => None,
                };
                let recipe = constraint.and_then(|constraint| constraint.recipe());
                let received = Received { message: message.clone(), recipe };
                // Messages came from a socket in the same encoding.
                let bytes = rmp_serde::to_vec_named(&received).unwrap_or_default();
                let mut words = Vec::new();
                pack(&bytes, &mut words);
                self.log.write(record::MESSAGE, &words);
            }
            Err(RecvTimeoutError::Timeout) => self.log.write(record::NOTHING, &[]),
            Err(RecvTimeoutError::Disconnected) => self.log.write(record::CLOSED, &[]),
        }
        received
    }
}

/// Another rank's end of the ring of commands: an inbox and a clock that repeat what rank 0 had.
pub(crate) struct Commands {
    reader: Arc<Mutex<Reader>>,
    build: BuildConstraint,
}

struct Reader {
    member: Arc<Member>,
    ring: BroadcastRing,
    words: Vec<u32>,
}

impl Reader {
    /// Reads the next record. Without one, or after a divergence, the process ends.
    fn next(&mut self) -> u32 {
        let read = self.ring.read(&self.member.endpoint, &mut self.words);
        read.unwrap_or_else(|error| self.end(&error.to_string()))
    }

    fn end(&self, why: &str) -> ! {
        eprintln!("kvasir: rank {}: {why}", self.member.rank());
        process::exit(1);
    }
}

impl Commands {
    /// The commands of rank 0 for the rank of `member`. `build` builds constraints.
    pub(crate) fn new(member: Arc<Member>, build: BuildConstraint) -> Self {
        let reader = Reader { member, ring: BroadcastRing::new(COMMANDS), words: Vec::new() };
        Self { reader: Arc::new(Mutex::new(reader)), build }
    }

    /// The readings of rank 0's clock.
    pub(crate) fn clock(&self) -> impl FnMut() -> Nanos + Send + use<> {
        let reader = Arc::clone(&self.reader);
        move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            match (reader.next(), &reader.words[..]) {
                (record::TIME, [low, high]) => Nanos::from(*low) | Nanos::from(*high) << 32,
                (kind, _) => reader.end(&format!("diverges: it reads the clock, rank 0's record is {kind}")),
            }
        }
    }
}

impl Inbox for Commands {
    fn receive(&mut self, _timeout: Option<Duration>) -> Result<Message, RecvTimeoutError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        match reader.next() {
            record::NOTHING => return Err(RecvTimeoutError::Timeout),
            record::CLOSED => return Err(RecvTimeoutError::Disconnected),
            record::MESSAGE => {}
            kind => reader.end(&format!("diverges: it reads its inbox, rank 0's record is {kind}")),
        }
        let bytes = unpack(&reader.words);
        let received = bytes.and_then(|bytes| rmp_serde::from_slice::<Received>(&bytes).ok());
        let Some(Received { mut message, recipe }) = received else { reader.end("a message is garbled") };
        if let (Message::Add { request, .. }, Some(recipe)) = (&mut message, recipe) {
            match (self.build)(&recipe, &request.prompt, &Arc::default()) {
                Some(constraint) => request.params.constraint = constraint,
                None => reader.end("a constraint cannot be built that rank 0 has built"),
            }
        }
        Ok(message)
    }
}

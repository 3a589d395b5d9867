//! [`CommandLog`] and [`CommandReplay`]: state machine replication of the engine.
//!
//! With `--rank-control requests` every rank runs its own engine. An engine is deterministic given
//! three inputs:
//!
//! 1. its inbox: each message, and each time that the inbox is empty or closed;
//! 2. its clock;
//! 3. the results of its steps.
//!
//! [`CommandLog`] is rank 0's log of inbox and clock in the command ring. [`CommandReplay`] is the
//! inbox and clock of every other rank, which read that log. Results travel in the step ring
//! (`step_hashes`). So all engines schedule the same steps. A rank whose reads do not match the log
//! exits.

use crate::constraint_builds::BuildConstraint;
use crate::monotonic;
use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::member::Member;
use crate::ranks::packed_bytes::{decode_bytes, encode_bytes};
use kvasir_engine::{Inbox, Message, Nanos};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Write},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

/// Index of the command ring.
const COMMAND_RING: usize = 1;

/// Record kinds of the command ring.
mod record {
    /// Words: the time in nanoseconds, low and high.
    pub(super) const TIME: u32 = 1;
    /// The inbox was empty.
    pub(super) const EMPTY: u32 = 2;
    /// The inbox has no senders.
    pub(super) const CLOSED: u32 = 3;
    /// Words: the length in bytes, and an encoded `LoggedMessage`.
    pub(super) const MESSAGE: u32 = 4;
}

/// A message, and the recipe from which other ranks build the constraint of an added request.
#[derive(Serialize, Deserialize)]
struct LoggedMessage {
    message: Message,
    recipe: Option<String>,
}

/// The writer of the command ring, on rank 0. Clones share the ring.
#[derive(Clone)]
pub struct CommandLog {
    member: Arc<Member>,
    ring: Arc<Mutex<BroadcastRing>>,
}

impl CommandLog {
    /// The log of a group. `member` must be rank 0; a group must have one log.
    pub fn new(member: Arc<Member>) -> Self {
        Self { member, ring: Arc::new(Mutex::new(BroadcastRing::new(COMMAND_RING))) }
    }

    /// Writes a record. Errors are dropped: a lost rank fails the next step.
    fn write(&self, kind: u32, words: &[u32]) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ring.write(&self.member.endpoint, kind, words);
    }

    /// A monotonic clock that logs each reading.
    pub(crate) fn clock(&self) -> impl FnMut() -> Nanos + Send + use<> {
        let log = self.clone();
        move || {
            let now = monotonic::now();
            log.write(record::TIME, &[now as u32, (now >> 32) as u32]);
            now
        }
    }

    /// Wraps `inbox`; logs each message, and each time that it is empty or closed.
    pub(crate) fn inbox<'a>(&self, inbox: &'a Receiver<Message>) -> LoggedInbox<'a> {
        LoggedInbox { log: self.clone(), inbox }
    }
}

/// The inbox of rank 0's engine, which logs what it returns.
pub(crate) struct LoggedInbox<'a> {
    log: CommandLog,
    inbox: &'a Receiver<Message>,
}

impl Inbox for LoggedInbox<'_> {
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Message, RecvTimeoutError> {
        let received = self.inbox.receive(timeout);
        match &received {
            Ok(message) => {
                let constraint = match message {
                    Message::Add { request, .. } => request.params.constraint.0.as_ref(),
                    _ => None,
                };
                let recipe = constraint.and_then(|constraint| constraint.recipe());
                let received = LoggedMessage { message: message.clone(), recipe };
                // Encoding cannot fail: messages were decoded from this encoding.
                let bytes = rmp_serde::to_vec_named(&received).unwrap_or_default();
                let mut words = Vec::new();
                encode_bytes(&bytes, &mut words);
                self.log.write(record::MESSAGE, &words);
            }
            Err(RecvTimeoutError::Timeout) => self.log.write(record::EMPTY, &[]),
            Err(RecvTimeoutError::Disconnected) => self.log.write(record::CLOSED, &[]),
        }
        received
    }
}

/// A reader of the command ring: replays the inbox and the clock of rank 0.
pub(crate) struct CommandReplay {
    reader: Arc<Mutex<CommandReader>>,
    build: BuildConstraint,
}

struct CommandReader {
    member: Arc<Member>,
    ring: BroadcastRing,
    words: Vec<u32>,
}

impl CommandReader {
    /// Reads the next record and returns its kind. Exits the process on an error.
    fn next(&mut self) -> u32 {
        let read = self.ring.read(&self.member.endpoint, &mut self.words);
        read.unwrap_or_else(|error| self.exit(&error.to_string()))
    }

    fn exit(&self, why: &str) -> ! {
        // `eprintln!` would panic instead of exiting if stderr cannot be written.
        let _ = writeln!(io::stderr(), "kvasir: rank {}: {why}", self.member.rank());
        process::exit(1);
    }
}

impl CommandReplay {
    /// The replay on the rank of `member`. `build` builds constraints from recipes.
    pub(crate) fn new(member: Arc<Member>, build: BuildConstraint) -> Self {
        let reader = CommandReader { member, ring: BroadcastRing::new(COMMAND_RING), words: Vec::new() };
        Self { reader: Arc::new(Mutex::new(reader)), build }
    }

    /// A clock that replays the readings of rank 0.
    pub(crate) fn clock(&self) -> impl FnMut() -> Nanos + Send + use<> {
        let reader = Arc::clone(&self.reader);
        move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            match (reader.next(), &reader.words[..]) {
                (record::TIME, [low, high]) => Nanos::from(*low) | Nanos::from(*high) << 32,
                (kind, _) => reader.exit(&format!(
                    "diverges from rank 0: it reads the clock, but the next record has kind `{kind}`"
                )),
            }
        }
    }
}

impl Inbox for CommandReplay {
    fn receive(&mut self, _timeout: Option<Duration>) -> Result<Message, RecvTimeoutError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        match reader.next() {
            record::EMPTY => return Err(RecvTimeoutError::Timeout),
            record::CLOSED => return Err(RecvTimeoutError::Disconnected),
            record::MESSAGE => {}
            kind => reader.exit(&format!(
                "diverges from rank 0: it reads its inbox, but the next record has kind `{kind}`"
            )),
        }
        let bytes = decode_bytes(&reader.words);
        let received = bytes.and_then(|bytes| rmp_serde::from_slice::<LoggedMessage>(&bytes).ok());
        let Some(LoggedMessage { mut message, recipe }) = received else {
            reader.exit("a message of rank 0 cannot be decoded")
        };
        if let (Message::Add { request, .. }, Some(recipe)) = (&mut message, recipe) {
            match (self.build)(&recipe, &request.prompt, &Arc::default()) {
                Some(constraint) => request.params.constraint = constraint,
                None => reader.exit("cannot build a constraint that rank 0 has built"),
            }
        }
        Ok(message)
    }
}

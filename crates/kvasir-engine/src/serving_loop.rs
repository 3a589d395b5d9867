//! The serving loop: runs an engine on its own thread, takes messages from an inbox between steps,
//! and hands the outbox to a delivery callback.
//!
//! Backpressure: at most `MESSAGES_PER_TURN` messages are taken between two steps, so a flood of
//! requests cannot starve the device. The loop blocks on the inbox while the engine is idle, and after
//! `RELEASE_AFTER` returns the memory of free slots to the system.
//! States: serving, draining (`Message::Drain`), exited.

use crate::engine::{Engine, Exit, Turn};
use crate::request::event::Outbox;
use crate::request::ids::{RequestId, SessionId};
use crate::request::kv_transfer::KvImport;
use crate::request::params::Request;
use crate::request::timings::Nanos;
use kvasir_exec::Executor;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    ops::Range,
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    time::Duration,
};

/// Messages to an engine on its own thread. Requests are named by their tag.
#[allow(missing_docs)] // the fields: see the variant
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Run a request `n` times with consecutive seeds. Sibling `i` has the tag `request.tag + i`;
    /// the caller must ensure that these tags are not in use.
    Add { request: Box<Request>, n: u32 },
    /// Abort a request.
    Abort { tag: u64 },
    /// The detokenizer found a stop string: end the request after `keep` outputs.
    StopAt { tag: u64, keep: u32 },
    /// Fork the first `at` retained tokens of a session into new sessions. The shared lengths are
    /// reported in the outbox.
    Fork { from: SessionId, into: Vec<SessionId>, at: u32 },
    /// Truncate a session's retained K/V to `to` tokens.
    Rewind { session: SessionId, to: u32 },
    /// Cut a range of tokens out of a session's retained K/V; see `Core::cut_session`.
    Cut { session: SessionId, range: Range<u32> },
    /// End a session and drop its retained K/V.
    EndSession(SessionId),
    /// Add blocks that another engine has computed to the prefix cache.
    Import(Box<KvImport>),
    /// Join the step that another replica of the lockstep group has begun. Changes no request.
    JoinStep,
    /// Exit once all requests have ended.
    Drain,
    /// Exit now; every request is aborted with a final event.
    Exit,
}

/// Most messages taken between two steps, so that a flood of them does not starve the device.
const MESSAGES_PER_TURN: usize = 1024;
/// Poll interval while waiting requests can be admitted only by the passing of time (delay factor).
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time without a request after which memory of free slots goes back to the system: long enough that
/// a conversation does not commit it again with each turn.
const RELEASE_AFTER: Duration = Duration::from_secs(10);

/// Source of an engine's messages.
pub trait Inbox {
    /// Receives the next message. Blocks for at most `timeout`, without limit for `None`, and not
    /// at all for zero.
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Message, RecvTimeoutError>;
}

impl Inbox for &Receiver<Message> {
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Message, RecvTimeoutError> {
        match timeout {
            Some(Duration::ZERO) => self.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            Some(timeout) => self.recv_timeout(timeout),
            None => self.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }
}

/// Serves an inbox on a dedicated thread: an engine, or a front process that forwards requests to
/// engines in other processes.
pub trait Serving: Send {
    /// Serves `inbox` until told to exit, and passes each non-empty outbox to `deliver`.
    fn serve_inbox(self: Box<Self>, inbox: Receiver<Message>, deliver: &mut dyn FnMut(&Outbox)) -> Exit;
}

impl<E: Executor + Send> Serving for Engine<E>
where
    E::Pending: Send,
{
    fn serve_inbox(mut self: Box<Self>, inbox: Receiver<Message>, deliver: &mut dyn FnMut(&Outbox)) -> Exit {
        self.serve(&inbox, deliver)
    }
}

impl<E: Executor> Engine<E> {
    /// Serves `inbox` until told to exit, and passes each non-empty outbox to `deliver`. When idle,
    /// it checks the invariants and blocks on the inbox.
    pub fn serve(&mut self, mut inbox: impl Inbox, mut deliver: impl FnMut(&Outbox)) -> Exit {
        let mut serving = ServingLoop::default();
        loop {
            let turn = match serving.take_messages(self, &mut inbox) {
                Some(exit) => Err(exit),
                None => self.step(),
            };
            if !self.core_mut().outbox().is_empty() {
                serving.forget(self.core_mut().outbox());
                deliver(self.core_mut().outbox());
                self.core_mut().outbox().clear();
            }
            match turn {
                Err(exit) => return exit,
                Ok(Turn::Ran) => {}
                Ok(Turn::Deferred) => {
                    serving.receive(self, inbox.receive(Some(POLL_INTERVAL)));
                }
                Ok(Turn::Idle) if serving.draining => return Exit::Requested,
                Ok(Turn::Idle) => {
                    if !serving.last_was_join_step
                        && let Err(why) = self.core().check_invariants()
                    {
                        return Exit::Broken(why);
                    }
                    let mut received = inbox.receive(Some(RELEASE_AFTER));
                    if received == Err(RecvTimeoutError::Timeout) {
                        self.release_free_memory();
                        received = inbox.receive(None);
                    }
                    serving.receive(self, received);
                }
            }
        }
    }
}

/// Maps client tags to request ids, and holds the shutdown state.
#[derive(Default)]
struct ServingLoop {
    ids: HashMap<u64, RequestId>,
    draining: bool,
    /// Whether the last message was `JoinStep`. A dummy step changes no state of the scheduler, so
    /// the invariants are then not checked.
    last_was_join_step: bool,
    exit: Option<Exit>,
}

impl ServingLoop {
    /// Takes up to `MESSAGES_PER_TURN` messages without blocking. On exit, aborts every request
    /// first.
    fn take_messages<E: Executor>(&mut self, engine: &mut Engine<E>, inbox: &mut impl Inbox) -> Option<Exit> {
        for _ in 0..MESSAGES_PER_TURN {
            if self.exit.is_some() {
                break;
            }
            if !self.receive(engine, inbox.receive(Some(Duration::ZERO))) {
                break;
            }
        }
        let exit = self.exit.take()?;
        let now = engine.now();
        for id in self.ids.values() {
            engine.core_mut().abort(*id, now);
        }
        Some(exit)
    }

    /// Applies a received message; false if there was none. Running requests have no receiver once
    /// all senders are gone, unless the loop is draining.
    fn receive<E: Executor>(
        &mut self,
        engine: &mut Engine<E>,
        received: Result<Message, RecvTimeoutError>,
    ) -> bool {
        match received {
            Ok(message) => {
                self.apply(engine, message);
                return true;
            }
            Err(RecvTimeoutError::Disconnected) if !self.draining => self.exit = Some(Exit::Closed),
            Err(_) => {}
        }
        false
    }

    fn apply<E: Executor>(&mut self, engine: &mut Engine<E>, message: Message) {
        let now: Nanos = engine.now();
        self.last_was_join_step = message == Message::JoinStep;
        match message {
            Message::Add { request, n } => {
                let tag = request.tag;
                // A refusal has already emitted its event.
                if let Ok(ids) = engine.core_mut().add_siblings(*request, n, now) {
                    self.ids.extend((tag..).zip(ids));
                }
            }
            Message::Abort { tag } => {
                if let Some(id) = self.ids.get(&tag) {
                    engine.core_mut().abort(*id, now);
                }
            }
            Message::StopAt { tag, keep } => {
                if let Some(id) = self.ids.get(&tag) {
                    engine.core_mut().stop_at(*id, keep, now);
                }
            }
            Message::Fork { from, into, at } => into.into_iter().for_each(|into| {
                engine.core_mut().fork_session(from, into, at);
            }),
            Message::Rewind { session, to } => engine.core_mut().rewind_session(session, to),
            Message::Cut { session, range } => engine.core_mut().cut_session(session, range),
            Message::EndSession(session) => engine.core_mut().end_session(session),
            Message::Import(import) => engine.import_kv(*import),
            // `Engine::step` joins the step.
            Message::JoinStep => {}
            Message::Drain => self.draining = true,
            Message::Exit => self.exit = Some(Exit::Requested),
        }
    }

    /// Drops the tags of requests that have ended.
    fn forget(&mut self, outbox: &Outbox) {
        for summary in &outbox.ended {
            if self.ids.get(&summary.tag) == Some(&summary.request) {
                self.ids.remove(&summary.tag);
            }
        }
    }
}

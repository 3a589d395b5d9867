//! [`LockstepInbox`]: the inbox of an engine that joins the steps of other replicas.
//!
//! An idle engine blocks on its inbox. Its *watcher*, a thread, then sleeps in the shared memory,
//! and sends [`Message::JoinStep`] when another replica begins a step. While the engine runs, the
//! watcher waits for the engine to become idle again, so that steps do not wake it. Neither uses the
//! processor while all replicas are idle.

use crate::experts::member::{ReplicaMember, locked};
use kvasir_engine::{Inbox, Message};
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};
use tokio::sync::Notify;

/// Whether the engine is idle, as its watcher sees it.
#[derive(Default)]
struct IdleFlag {
    is_idle: Mutex<bool>,
    changed: Condvar,
}

impl IdleFlag {
    fn set(&self, is_idle: bool) {
        *locked(&self.is_idle) = is_idle;
        self.changed.notify_one();
    }

    /// Blocks until the engine is idle.
    fn wait(&self) {
        let guard = locked(&self.is_idle);
        let waited = self.changed.wait_while(guard, |is_idle| !*is_idle);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The inbox of an engine, and the watcher of the other replicas' steps.
pub(crate) struct LockstepInbox<'a> {
    messages: &'a Receiver<Message>,
    member: Arc<ReplicaMember>,
    idle: Arc<IdleFlag>,
    joined: Arc<Notify>,
}

impl<'a> LockstepInbox<'a> {
    /// Starts the watcher, which sends to `inbox`, the sender of `messages`. `joined` is notified when
    /// the engine joins a step.
    pub(crate) fn start(
        member: Arc<ReplicaMember>,
        messages: &'a Receiver<Message>,
        inbox: Sender<Message>,
        joined: Arc<Notify>,
    ) -> io::Result<Self> {
        let idle = Arc::new(IdleFlag::default());
        let (watched, watched_idle) = (Arc::clone(&member), Arc::clone(&idle));
        // Ends with the process, or with the inbox.
        thread::Builder::new().name("lockstep".into()).spawn(move || {
            loop {
                watched_idle.wait();
                // No rank is ever marked as lost, so this does not fail.
                let _ = watched.watcher.wait(|| watched.is_behind().then_some(()));
                let mut is_idle = locked(&watched_idle.is_idle);
                if *is_idle && inbox.send(Message::JoinStep).is_err() {
                    return;
                }
                *is_idle = false;
            }
        })?;
        Ok(Self { messages, member, idle, joined })
    }
}

impl Inbox for LockstepInbox<'_> {
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Message, RecvTimeoutError> {
        let mut messages = self.messages;
        if timeout == Some(Duration::ZERO) {
            return messages.receive(timeout);
        }
        let received = if self.member.is_behind() {
            Ok(Message::JoinStep)
        } else {
            self.idle.set(true);
            let received = messages.receive(timeout);
            self.idle.set(false);
            received
        };
        if received == Ok(Message::JoinStep) {
            self.joined.notify_one();
        }
        received
    }
}

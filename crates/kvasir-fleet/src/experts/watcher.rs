//! [`LockstepInbox`]: the inbox of an engine in lockstep with other replicas.
//!
//! While the engine is idle and blocks on its inbox, the *watcher* thread waits on a futex in the
//! shared memory, and sends [`Message::JoinStep`] when another replica begins a step. While the
//! engine is busy, the watcher waits for it to become idle, so that steps do not wake the watcher.
//! Both threads sleep while all replicas are idle.

use crate::experts::member::{ExpertGroupMember, locked};
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

/// Whether the engine is idle. The engine sets it; the watcher waits for it.
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

/// Receives messages of the caller, and [`Message::JoinStep`] if this replica is behind.
pub(crate) struct LockstepInbox<'a> {
    messages: &'a Receiver<Message>,
    member: Arc<ExpertGroupMember>,
    idle: Arc<IdleFlag>,
    joined: Arc<Notify>,
}

impl<'a> LockstepInbox<'a> {
    /// Starts the watcher thread. `inbox` must be a sender of `messages`. `joined` is notified when
    /// the engine joins a step.
    pub(crate) fn start(
        member: Arc<ExpertGroupMember>,
        messages: &'a Receiver<Message>,
        inbox: Sender<Message>,
        joined: Arc<Notify>,
    ) -> io::Result<Self> {
        let idle = Arc::new(IdleFlag::default());
        let (watched, watched_idle) = (Arc::clone(&member), Arc::clone(&idle));
        // The thread ends with the process, or once the receiver of `messages` is dropped.
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

//! Tracks how many tokens of K/V the engine retains per session, and awaits its confirmation of
//! session operations.

use crate::{ApiError, host::Host};
use kvasir_engine::{Message, Outbox, SessionId};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// Retained K/V tokens per session, as reported by the engine.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// Cached tokens per session; sessions without any are absent.
    tokens: HashMap<SessionId, u32>,
    /// Pending operations that await the engine's confirmation.
    waiting: HashMap<SessionId, oneshot::Sender<()>>,
}

impl Kept {
    fn told(&self) -> MutexGuard<'_, Told> {
        // No holder of the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the session updates of an outbox and wakes waiting operations.
    pub(crate) fn hear(&self, outbox: &Outbox) {
        if outbox.kept.is_empty() {
            return;
        }
        let mut told = self.told();
        for (session, tokens) in &outbox.kept {
            match tokens {
                0 => drop(told.tokens.remove(session)),
                _ => drop(told.tokens.insert(*session, *tokens)),
            }
            if let Some(waiting) = told.waiting.remove(session) {
                // The waiting request may have been dropped.
                let _ = waiting.send(());
            }
        }
    }

    /// The engine has stopped: waiting operations fail.
    pub(crate) fn close(&self) {
        *self.told() = Told::default();
    }
}

impl Host {
    /// Cached tokens of a session.
    pub fn kept(&self, session: SessionId) -> u32 {
        self.kept.told().tokens.get(&session).copied().unwrap_or_default()
    }

    /// Starts new sessions with the first `at` tokens of another (copy-on-write), and waits for the
    /// engine's confirmation.
    pub async fn fork(&self, from: SessionId, into: &[SessionId], at: u32) -> Result<(), ApiError> {
        self.tell_and_hear(into, Message::Fork { from, into: into.to_vec(), at }).await
    }

    /// Truncates a session to `to` tokens, and waits for the engine's confirmation.
    pub async fn rewind(&self, session: SessionId, to: u32) -> Result<(), ApiError> {
        self.tell_and_hear(&[session], Message::Rewind { session, to }).await
    }

    /// Sends a message, and waits until the engine has reported the state of these sessions.
    async fn tell_and_hear(&self, of: &[SessionId], message: Message) -> Result<(), ApiError> {
        let mut told = Vec::with_capacity(of.len());
        for session in of {
            let (send, receive) = oneshot::channel();
            self.kept.told().waiting.insert(*session, send);
            told.push(receive);
        }
        self.tell(message)?;
        for one in told {
            one.await.map_err(|_| gone())?;
        }
        Ok(())
    }

    /// Ends a session; the engine releases its K/V.
    pub fn end_session(&self, session: SessionId) {
        // A stopped engine retains nothing.
        let _ = self.tell(Message::EndSession(session));
    }

    fn tell(&self, message: Message) -> Result<(), ApiError> {
        match self.inbox.send(message).is_ok() && self.exit().is_none() {
            true => Ok(()),
            false => Err(gone()),
        }
    }
}

fn gone() -> ApiError {
    ApiError::unavailable("the engine has stopped")
}

//! Tracks how many tokens of K/V the engine retains per session, and awaits its reports on session
//! operations.

use kvasir_engine::{Outbox, SessionId};
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

    /// Retained tokens of a session.
    pub(crate) fn tokens(&self, session: SessionId) -> u32 {
        self.told().tokens.get(&session).copied().unwrap_or_default()
    }

    /// Awaits the engine's next report on each of these sessions.
    pub(crate) fn reports_on(&self, sessions: &[SessionId]) -> Vec<oneshot::Receiver<()>> {
        let report = |session: &SessionId| {
            let (send, receive) = oneshot::channel();
            self.told().waiting.insert(*session, send);
            receive
        };
        sessions.iter().map(report).collect()
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

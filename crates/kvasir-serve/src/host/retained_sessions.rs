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
pub(crate) struct RetainedSessions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Cached tokens per session; sessions without any are absent.
    tokens: HashMap<SessionId, u32>,
    /// Pending operations that await the engine's confirmation.
    waiting: HashMap<SessionId, oneshot::Sender<()>>,
}

impl RetainedSessions {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No holder of the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retained tokens of a session.
    pub(crate) fn tokens(&self, session: SessionId) -> u32 {
        self.lock().tokens.get(&session).copied().unwrap_or_default()
    }

    /// Awaits the engine's next report on each of these sessions.
    pub(crate) fn reports_on(&self, sessions: &[SessionId]) -> Vec<oneshot::Receiver<()>> {
        let report = |session: &SessionId| {
            let (send, receive) = oneshot::channel();
            self.lock().waiting.insert(*session, send);
            receive
        };
        sessions.iter().map(report).collect()
    }

    /// Applies the session updates of an outbox and wakes waiting operations.
    pub(crate) fn record(&self, outbox: &Outbox) {
        if outbox.retained.is_empty() {
            return;
        }
        let mut state = self.lock();
        for (session, tokens) in &outbox.retained {
            match tokens {
                0 => drop(state.tokens.remove(session)),
                _ => drop(state.tokens.insert(*session, *tokens)),
            }
            if let Some(waiting) = state.waiting.remove(session) {
                // The waiting request may have been dropped.
                let _ = waiting.send(());
            }
        }
    }

    /// The engine has stopped: waiting operations fail.
    pub(crate) fn close(&self) {
        *self.lock() = State::default();
    }
}

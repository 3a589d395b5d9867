use crate::{ApiError, host::Host};
use kvasir_engine::{Message, Outbox, SessionId};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// What the engine has of each session, as it tells.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// Tokens whose K and V are there; those of which there are none are absent.
    tokens: HashMap<SessionId, u32>,
    /// Who waits to be told of a session.
    waiting: HashMap<SessionId, oneshot::Sender<()>>,
}

impl Kept {
    fn told(&self) -> MutexGuard<'_, Told> {
        // Nothing that holds the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what an outbox says.
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
                // Whoever waited may have left.
                let _ = waiting.send(());
            }
        }
    }

    /// The engine is gone: nobody waits any longer.
    pub(crate) fn close(&self) {
        *self.told() = Told::default();
    }
}

impl Host {
    /// Tokens of a session whose K and V are there.
    pub fn kept(&self, session: SessionId) -> u32 {
        self.kept.told().tokens.get(&session).copied().unwrap_or_default()
    }

    /// Lets new sessions begin with the first `at` tokens of another's, and waits until they have what there is of them.
    pub async fn fork(&self, from: SessionId, into: &[SessionId], at: u32) -> Result<(), ApiError> {
        self.tell_and_hear(into, Message::Fork { from, into: into.to_vec(), at }).await
    }

    /// A session goes on from an earlier token; waits until it has no more than that.
    pub async fn rewind(&self, session: SessionId, to: u32) -> Result<(), ApiError> {
        self.tell_and_hear(&[session], Message::Rewind { session, to }).await
    }

    /// Tells the engine something, and waits until it has said what these sessions have now.
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

    /// A session is over.
    pub fn end_session(&self, session: SessionId) {
        // An engine that is gone has nothing of it.
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

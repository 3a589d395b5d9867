//! Conversations that the server keeps: what was said, and whose it is. What has been computed for them is the engine's affair.

use crate::ApiError;
use kvasir_engine::SessionId;
use kvasir_kv::Token;
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Most sessions at once, of all keys together.
pub const MAX_SESSIONS: usize = 4096;

/// What a session is made of. It is one or the other from its first turn on.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Said {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Tokens that completions append to.
    Text,
    /// Messages that chats append to, as clients write them.
    Messages(Vec<Value>),
}

/// One conversation.
#[derive(Clone, Debug)]
pub struct Session {
    /// What it is made of.
    pub said: Said,
    /// All of it as tokens, as they were run last.
    pub tokens: Vec<Token>,
    /// How long it may lie idle.
    pub ttl: Duration,
    owner: u64,
    used: Instant,
    /// A request appends to it.
    busy: bool,
}

impl Session {
    /// A session of nothing, which belongs to this key.
    pub fn new(owner: u64, ttl: Duration) -> Self {
        Self { said: Said::Nothing, tokens: Vec::new(), ttl, owner, used: Instant::now(), busy: false }
    }

    /// Another one that has said the same until here.
    pub fn branch(&self, said: Said, tokens: Vec<Token>) -> Self {
        Self { said, tokens, used: Instant::now(), busy: false, ..*self }
    }

    /// Time that is left if nobody uses it.
    pub fn left(&self) -> Duration {
        self.ttl.saturating_sub(self.used.elapsed())
    }

    /// The messages; none of a text.
    pub fn messages(&self) -> Option<&[Value]> {
        match &self.said {
            Said::Nothing => Some(&[]),
            Said::Messages(messages) => Some(messages),
            Said::Text => None,
        }
    }
}

/// What clients call a session.
pub fn name(id: SessionId) -> String {
    format!("sess_{:016x}", id.0)
}

fn id_of(name: &str) -> Option<SessionId> {
    let digits = name.strip_prefix("sess_").filter(|digits| digits.len() == 16)?;
    let id = SessionId(u64::from_str_radix(digits, 16).ok()?);
    (self::name(id) == name).then_some(id)
}

/// All sessions.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<SessionId, Session>>);

impl Sessions {
    fn table(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        // Nothing that holds the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out those whose time is over; their ids come back.
    pub fn expire(&self) -> Vec<SessionId> {
        let mut table = self.table();
        let over = |session: &Session| !session.busy && session.left().is_zero();
        let gone: Vec<SessionId> =
            table.iter().filter(|(_, session)| over(session)).map(|(id, _)| *id).collect();
        gone.iter().for_each(|id| drop(table.remove(id)));
        gone
    }

    /// Puts sessions in under these ids, all or none.
    pub fn insert(&self, sessions: Vec<(SessionId, Session)>) -> Result<(), ApiError> {
        let mut table = self.table();
        if table.len() + sessions.len() > MAX_SESSIONS {
            return Err(ApiError::too_many(format!(
                "there are {} sessions and may be {MAX_SESSIONS}",
                table.len()
            )));
        }
        table.extend(sessions);
        Ok(())
    }

    /// Whether there is one of this id.
    pub fn holds(&self, id: SessionId) -> bool {
        self.table().contains_key(&id)
    }

    /// Whose session has this name, and the session. Those of other keys are not there.
    pub fn get(&self, name: &str, owner: u64) -> Result<(SessionId, Session), ApiError> {
        self.with(name, owner, |session| Ok(session.clone()))
    }

    /// All sessions of a key, by name.
    pub fn of(&self, owner: u64) -> Vec<(SessionId, Session)> {
        let table = self.table();
        let own = table.iter().filter(|(_, session)| session.owner == owner);
        let mut own: Vec<_> = own.map(|(id, session)| (*id, session.clone())).collect();
        own.sort_by_key(|(id, _)| *id);
        own
    }

    /// Changes a session that nothing is being appended to. It counts as a use.
    pub fn change<R>(
        &self,
        name: &str,
        owner: u64,
        work: impl FnOnce(&mut Session) -> Result<R, ApiError>,
    ) -> Result<(SessionId, R), ApiError> {
        self.with(name, owner, |session| {
            if session.busy {
                return Err(ApiError::conflict("session", "a request is being answered in this session"));
            }
            let done = work(session)?;
            session.used = Instant::now();
            Ok(done)
        })
    }

    fn with<R>(
        &self,
        name: &str,
        owner: u64,
        work: impl FnOnce(&mut Session) -> Result<R, ApiError>,
    ) -> Result<(SessionId, R), ApiError> {
        let id = id_of(name);
        let mut table = self.table();
        let session = id.and_then(|id| table.get_mut(&id)).filter(|session| session.owner == owner);
        match (id, session) {
            (Some(id), Some(session)) => work(session).map(|done| (id, done)),
            _ => Err(ApiError::not_found("session", format!("there is no session `{}`", shortened(name)))),
        }
    }

    /// Takes a session out, whatever it does.
    pub fn remove(&self, name: &str, owner: u64) -> Result<SessionId, ApiError> {
        let (id, ()) = self.with(name, owner, |_| Ok(()))?;
        self.table().remove(&id);
        Ok(id)
    }

    /// Begins a turn: nobody else appends until it is over. What `work` makes of the session comes with it.
    pub fn begin<R>(
        self: &Arc<Self>,
        name: &str,
        owner: u64,
        work: impl FnOnce(&Session) -> Result<R, ApiError>,
    ) -> Result<(Turn, R), ApiError> {
        let (id, made) = self.change(name, owner, |session| {
            let made = work(session)?;
            session.busy = true;
            Ok(made)
        })?;
        Ok((Turn { sessions: self.clone(), id }, made))
    }
}

fn shortened(name: &str) -> String {
    name.chars().take(40).collect()
}

/// A request that appends to a session. Until it is finished the session is as it was before; dropped before, it stays so.
#[derive(Debug)]
pub struct Turn {
    sessions: Arc<Sessions>,
    id: SessionId,
}

impl Turn {
    /// The session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The session is this from now on.
    pub fn finish(self, said: Said, tokens: Vec<Token>) {
        if let Some(session) = self.sessions.table().get_mut(&self.id) {
            (session.said, session.tokens) = (said, tokens);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(session) = self.sessions.table().get_mut(&self.id) {
            session.busy = false;
            session.used = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(owner: u64, ttl: u64) -> (Arc<Sessions>, String) {
        let sessions = Arc::new(Sessions::default());
        let id = SessionId(7);
        sessions.insert(vec![(id, Session::new(owner, Duration::from_secs(ttl)))]).unwrap();
        (sessions, name(id))
    }

    fn status<T>(result: Result<T, ApiError>) -> u16 {
        result.err().map_or(200, |error| error.status)
    }

    #[test]
    fn a_key_sees_its_own_sessions_only() {
        let (sessions, name) = one(1, 60);
        assert_eq!(status(sessions.get(&name, 1)), 200);
        assert_eq!(status(sessions.get(&name, 2)), 404);
        assert_eq!(status(sessions.remove(&name, 2)), 404);
        assert_eq!((sessions.of(1).len(), sessions.of(2).len()), (1, 0));
        for wrong in
            ["", "sess_7", "sess_000000000000000g", "sess_+000000000000007", "sess_0000000000000007x"]
        {
            assert_eq!(status(sessions.get(wrong, 1)), 404, "{wrong}");
        }
    }

    #[test]
    fn a_turn_is_alone_and_leaves_a_trace_only_when_it_is_finished() {
        let (sessions, name) = one(0, 60);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        assert_eq!(status(sessions.begin(&name, 0, |_| Ok(()))), 409);
        assert_eq!(status(sessions.change(&name, 0, |_| Ok(()))), 409);
        drop(turn);
        assert_eq!(sessions.get(&name, 0).unwrap().1.said, Said::Nothing);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        turn.finish(Said::Text, vec![1, 2]);
        assert_eq!(sessions.get(&name, 0).unwrap().1.tokens, [1, 2]);
        let refused = sessions.begin(&name, 0, |_| Err::<(), _>(ApiError::param("x", "y")));
        assert_eq!(status(refused), 400);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        sessions.remove(&name, 0).unwrap();
        turn.finish(Said::Text, vec![1]);
        assert!(sessions.of(0).is_empty(), "what was ended meanwhile does not come back");
    }

    #[test]
    fn who_lies_idle_too_long_goes_and_who_works_stays() {
        let (sessions, name) = one(0, 0);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        assert!(sessions.expire().is_empty());
        drop(turn);
        assert_eq!(sessions.expire(), [SessionId(7)]);
        assert_eq!(status(sessions.get(&name, 0)), 404);
    }

    #[test]
    fn there_may_be_so_many_and_no_more() {
        let sessions = Sessions::default();
        let new = |id| (SessionId(id), Session::new(0, Duration::from_secs(9)));
        sessions.insert((0..MAX_SESSIONS as u64 - 1).map(new).collect()).unwrap();
        assert_eq!(status(sessions.insert(vec![new(9_000), new(9_001)])), 429);
        assert_eq!(status(sessions.insert(vec![new(9_000)])), 200);
    }
}

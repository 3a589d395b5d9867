//! Session store: conversations kept across requests, with owner, TTL and limits. The engine keeps
//! their K/V.
//!
//! Invariants: a key sees only its own sessions. At most one request (a `Turn`) appends to a
//! session at a time, and it commits only in `finish`; dropping it changes nothing. Message memory
//! is counted once across forks, which share it (copy-on-write).

use crate::error::ApiError;
use crate::session::shared_memory::{HeldBytes, SharedMemory};
use kvasir_engine::SessionId;
use kvasir_kv::Token;
use serde_json::Value;
use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Maximum sessions over all keys.
pub const MAX_SESSIONS: usize = 4096;
/// Maximum sessions per key, so that one key cannot exhaust the store.
const MAX_OF_KEY: usize = MAX_SESSIONS / 2;
/// Bytes of all messages beyond which sessions of keys with more than their share may not grow.
const MAX_BYTES: usize = 1 << 30;

/// Content of a session. Text or messages, fixed by the first turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SessionContent {
    /// Empty.
    #[default]
    Empty,
    /// Raw text, to which completions append tokens.
    Text,
    /// Chat messages. Forks share them (copy-on-write).
    Messages(Arc<Messages>),
}

/// Tokens of a session. Forks share them (copy-on-write).
pub type Tokens = Arc<[Token]>;

/// Messages in API format; their memory is counted until drop.
#[derive(Debug)]
pub struct Messages {
    list: Vec<Value>,
    _bytes: HeldBytes,
}

impl Deref for Messages {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.list
    }
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

/// Estimated heap size of a value.
fn bytes_of(value: &Value) -> usize {
    /// Overhead of a map entry.
    const ENTRY: usize = 48;
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes_of).sum(),
        Value::Object(map) => map.iter().map(|(key, item)| key.len() + ENTRY + bytes_of(item)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inside
}

/// A session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its content.
    pub content: SessionContent,
    /// Its tokens, as of the last turn.
    pub tokens: Tokens,
    /// Time to live while idle.
    pub ttl: Duration,
    owner: u64,
    /// The session from which it was forked, directly or not; its own id otherwise.
    family: SessionId,
    used: Instant,
    /// A turn is in progress.
    busy: bool,
}

impl Session {
    /// An empty session of this key.
    pub fn new(id: SessionId, owner: u64, ttl: Duration) -> Self {
        Self {
            content: SessionContent::Empty,
            tokens: Tokens::default(),
            ttl,
            owner,
            family: id,
            used: Instant::now(),
            busy: false,
        }
    }

    /// A fork with this content.
    pub fn fork(&self, content: SessionContent, tokens: Tokens) -> Self {
        Self { content, tokens, used: Instant::now(), busy: false, ..*self }
    }

    /// Id of the key that owns it.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Remaining time to live.
    pub fn remaining_ttl(&self) -> Duration {
        self.ttl.saturating_sub(self.used.elapsed())
    }

    /// Its messages; `None` for raw text.
    pub fn messages(&self) -> Option<&[Value]> {
        match &self.content {
            SessionContent::Empty => Some(&[]),
            SessionContent::Messages(messages) => Some(messages),
            SessionContent::Text => None,
        }
    }
}

/// Public name of a session.
pub fn name(id: SessionId) -> String {
    format!("sess_{:016x}", id.0)
}

fn id_of(name: &str) -> Option<SessionId> {
    let digits = name.strip_prefix("sess_").filter(|digits| digits.len() == 16)?;
    let id = SessionId(u64::from_str_radix(digits, 16).ok()?);
    (self::name(id) == name).then_some(id)
}

/// The session store.
#[derive(Debug, Default)]
pub struct Sessions {
    table: Mutex<HashMap<SessionId, Session>>,
    /// Bytes of all live messages.
    memory: Arc<SharedMemory>,
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        // No holder of the lock can leave it half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wraps messages so that their memory is counted toward a key.
    pub fn messages(&self, owner: u64, list: Vec<Value>) -> SessionContent {
        let _bytes = self.memory.hold(owner, list.iter().map(bytes_of).sum());
        SessionContent::Messages(Arc::new(Messages { list, _bytes }))
    }

    /// Rejects growth of a key's sessions while messages exceed the memory limit and the key has more
    /// than its share of it.
    pub fn check_memory(&self, owner: u64) -> Result<(), ApiError> {
        match self.memory.excess(owner, MAX_BYTES) {
            Some(own) => Err(ApiError::too_many(format!(
                "the messages of this key's sessions take {own} bytes, and all sessions may take {MAX_BYTES}: delete some sessions"
            ))),
            None => Ok(()),
        }
    }

    /// Removes expired sessions; returns their ids.
    pub fn expire(&self) -> Vec<SessionId> {
        let mut table = self.table();
        let is_expired = |session: &Session| !session.busy && session.remaining_ttl().is_zero();
        let expired: Vec<SessionId> =
            table.iter().filter(|(_, session)| is_expired(session)).map(|(id, _)| *id).collect();
        expired.iter().for_each(|id| drop(table.remove(id)));
        expired
    }

    /// Inserts sessions of one key, all or none.
    pub fn insert(&self, sessions: Vec<(SessionId, Session)>) -> Result<(), ApiError> {
        let mut table = self.table();
        if table.len() + sessions.len() > MAX_SESSIONS {
            return Err(ApiError::too_many(format!(
                "there are {} sessions and may be {MAX_SESSIONS}",
                table.len()
            )));
        }
        let owner = sessions.first().map(|(_, session)| session.owner);
        let own = table.values().filter(|session| Some(session.owner) == owner).count();
        if own + sessions.len() > MAX_OF_KEY {
            return Err(ApiError::too_many(format!("this key has {own} sessions and may have {MAX_OF_KEY}")));
        }
        table.extend(sessions);
        Ok(())
    }

    /// Removes sessions unconditionally: busy or not, of any key.
    pub fn remove_all(&self, ids: &[SessionId]) {
        let mut table = self.table();
        ids.iter().for_each(|id| drop(table.remove(id)));
    }

    /// Whether this id exists.
    pub fn contains(&self, id: SessionId) -> bool {
        self.table().contains_key(&id)
    }

    /// Looks up a key's session by name. Other keys' sessions are reported as not found.
    pub fn get(&self, name: &str, owner: u64) -> Result<(SessionId, Session), ApiError> {
        self.with(name, owner, |session| Ok(session.clone()))
    }

    /// All sessions of a key, ordered by id.
    pub fn owned_by(&self, owner: u64) -> Vec<(SessionId, Session)> {
        let table = self.table();
        let own = table.iter().filter(|(_, session)| session.owner == owner);
        let mut own: Vec<_> = own.map(|(id, session)| (*id, session.clone())).collect();
        own.sort_by_key(|(id, _)| *id);
        own
    }

    /// Modifies a session unless a turn is in progress (409). Counts as a use.
    pub fn modify<R>(
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

    /// Removes a session, busy or not.
    pub fn remove(&self, name: &str, owner: u64) -> Result<SessionId, ApiError> {
        let (id, ()) = self.with(name, owner, |_| Ok(()))?;
        self.table().remove(&id);
        Ok(id)
    }

    /// Removes all sessions that share a fork with this one, busy or not; returns their ids.
    pub fn keep(&self, name: &str, owner: u64) -> Result<Vec<SessionId>, ApiError> {
        let (kept, family) = self.with(name, owner, |session| {
            session.used = Instant::now();
            Ok(session.family)
        })?;
        let mut table = self.table();
        let others = table.iter().filter(|(id, session)| session.family == family && **id != kept);
        let mut others: Vec<SessionId> = others.map(|(id, _)| *id).collect();
        others.iter().for_each(|id| drop(table.remove(id)));
        others.sort();
        Ok(others)
    }

    /// Begins a turn: other turns are rejected until it ends. Also returns the result of `work` on
    /// the session.
    pub fn begin<R>(
        self: &Arc<Self>,
        name: &str,
        owner: u64,
        work: impl FnOnce(&Session) -> Result<R, ApiError>,
    ) -> Result<(Turn, R), ApiError> {
        let (id, made) = self.modify(name, owner, |session| {
            let made = work(session)?;
            session.busy = true;
            Ok(made)
        })?;
        Ok((Turn { sessions: self.clone(), id, owner }, made))
    }
}

fn shortened(name: &str) -> String {
    name.chars().take(40).collect()
}

/// An exclusive turn in a session. The session changes only in `finish`; dropping the turn leaves
/// it unchanged.
#[derive(Debug)]
pub struct Turn {
    sessions: Arc<Sessions>,
    id: SessionId,
    owner: u64,
}

impl Turn {
    /// Id of the session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Wraps messages so that their memory is counted.
    pub fn messages(&self, list: Vec<Value>) -> SessionContent {
        self.sessions.messages(self.owner, list)
    }

    /// Commits the new content.
    pub fn finish(self, content: SessionContent, tokens: Tokens) {
        if let Some(session) = self.sessions.table().get_mut(&self.id) {
            (session.content, session.tokens) = (content, tokens);
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
        sessions.insert(vec![(id, Session::new(id, owner, Duration::from_secs(ttl)))]).unwrap();
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
        assert_eq!((sessions.owned_by(1).len(), sessions.owned_by(2).len()), (1, 0));
        for wrong in
            ["", "sess_7", "sess_000000000000000g", "sess_+000000000000007", "sess_0000000000000007x"]
        {
            assert_eq!(status(sessions.get(wrong, 1)), 404, "{wrong}");
        }
    }

    #[test]
    fn turns_are_exclusive_and_commit_only_when_finished() {
        let (sessions, name) = one(0, 60);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        assert_eq!(status(sessions.begin(&name, 0, |_| Ok(()))), 409);
        assert_eq!(status(sessions.modify(&name, 0, |_| Ok(()))), 409);
        drop(turn);
        assert_eq!(sessions.get(&name, 0).unwrap().1.content, SessionContent::Empty);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        turn.finish(SessionContent::Text, [1, 2].into());
        assert_eq!(*sessions.get(&name, 0).unwrap().1.tokens, [1, 2]);
        let refused = sessions.begin(&name, 0, |_| Err::<(), _>(ApiError::param("x", "y")));
        assert_eq!(status(refused), 400);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        sessions.remove(&name, 0).unwrap();
        turn.finish(SessionContent::Text, [1].into());
        assert!(sessions.owned_by(0).is_empty(), "what was ended meanwhile does not come back");
    }

    #[test]
    fn idle_sessions_expire_and_busy_ones_stay() {
        let (sessions, name) = one(0, 0);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        assert!(sessions.expire().is_empty());
        drop(turn);
        assert_eq!(sessions.expire(), [SessionId(7)]);
        assert_eq!(status(sessions.get(&name, 0)), 404);
    }

    #[test]
    fn session_counts_are_limited() {
        let sessions = Sessions::default();
        let new = |owner, id| (SessionId(id), Session::new(SessionId(id), owner, Duration::from_secs(9)));
        let some = |owner, ids: std::ops::Range<u64>| {
            status(sessions.insert(ids.map(|id| new(owner, id)).collect()))
        };
        let most = MAX_OF_KEY as u64;
        assert_eq!((some(0, 0..most + 1), some(0, 0..most), some(0, 9_000..9_001)), (429, 200, 429));
        assert_eq!((some(1, most..2 * most - 1), some(2, 9_000..9_002)), (200, 429));
        assert_eq!((some(2, 9_000..9_001), some(3, 9_002..9_003)), (200, 429));
    }

    #[test]
    fn forks_count_shared_messages_once() {
        let sessions = Arc::new(Sessions::default());
        let half = |owner, letter: &str| {
            sessions.messages(owner, vec![serde_json::json!({"content": letter.repeat(MAX_BYTES / 2)})])
        };
        let content = half(1, "x");
        let one = sessions.memory.total();
        assert!(one > MAX_BYTES / 2 && one < MAX_BYTES / 2 + 1000);
        let trunk = Session::new(SessionId(0), 1, Duration::from_secs(9));
        let forks = (0..100).map(|id| (SessionId(id), trunk.fork(content.clone(), Tokens::default())));
        sessions.insert(forks.collect()).unwrap();
        assert_eq!((sessions.memory.total(), status(sessions.check_memory(1))), (one, 200));
        let other = half(1, "y");
        // Only the key that has filled the memory is refused.
        assert_eq!((status(sessions.check_memory(1)), status(sessions.check_memory(2))), (429, 200));
        drop(other);
        assert_eq!((sessions.memory.total(), status(sessions.check_memory(1))), (one, 200));
        drop(content);
        sessions.remove_all(&(0..100).map(SessionId).collect::<Vec<_>>());
        assert_eq!(sessions.memory.total(), 0);
    }
}

//! Conversations that the server keeps: what was said, and whose it is. What has been computed for them is the engine's affair.

use crate::ApiError;
use kvasir_engine::SessionId;
use kvasir_kv::Token;
use serde_json::Value;
use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Most sessions at once, of all keys together.
pub const MAX_SESSIONS: usize = 4096;
/// Most of one key: nobody else is locked out by it.
const MAX_OF_KEY: usize = MAX_SESSIONS / 2;
/// Bytes that the messages of all sessions may take before nothing more is appended.
const MAX_BYTES: usize = 1 << 30;

/// What a session is made of. It is one or the other from its first turn on.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Said {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Tokens that completions append to.
    Text,
    /// Messages that chats append to. Forks share them until they go on.
    Messages(Arc<Messages>),
}

/// What a session has as tokens. Forks share them until they go on.
pub type Tokens = Arc<[Token]>;

/// Messages as clients write them, counted for as long as they are held.
#[derive(Debug)]
pub struct Messages {
    list: Vec<Value>,
    bytes: usize,
    held: Arc<AtomicUsize>,
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

impl Drop for Messages {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory that a value takes, about.
fn bytes_of(value: &Value) -> usize {
    /// What a map keeps beside each key and value.
    const ENTRY: usize = 48;
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes_of).sum(),
        Value::Object(map) => map.iter().map(|(key, item)| key.len() + ENTRY + bytes_of(item)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inside
}

/// One conversation.
#[derive(Clone, Debug)]
pub struct Session {
    /// What it is made of.
    pub said: Said,
    /// All of it as tokens, as they were run last.
    pub tokens: Tokens,
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
        Self { said: Said::Nothing, tokens: Tokens::default(), ttl, owner, used: Instant::now(), busy: false }
    }

    /// Another one that has said the same until here.
    pub fn branch(&self, said: Said, tokens: Tokens) -> Self {
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
pub struct Sessions {
    table: Mutex<HashMap<SessionId, Session>>,
    /// Bytes of all messages that are held.
    held: Arc<AtomicUsize>,
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        // Nothing that holds the lock can leave it half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages to be held.
    pub fn messages(&self, list: Vec<Value>) -> Said {
        let (bytes, held) = (list.iter().map(bytes_of).sum(), self.held.clone());
        held.fetch_add(bytes, Ordering::Relaxed);
        Said::Messages(Arc::new(Messages { list, bytes, held }))
    }

    /// Refuses that more is appended while what is held takes too much memory.
    pub fn room(&self) -> Result<(), ApiError> {
        match self.held.load(Ordering::Relaxed) {
            held if held > MAX_BYTES => Err(ApiError::too_many(format!(
                "the messages of all sessions take {held} bytes and may take {MAX_BYTES}: delete some sessions"
            ))),
            _ => Ok(()),
        }
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

    /// Puts sessions of one key in under these ids, all or none.
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

    /// Takes sessions out, whatever they do and whosever they are.
    pub fn forget(&self, ids: &[SessionId]) {
        let mut table = self.table();
        ids.iter().for_each(|id| drop(table.remove(id)));
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

    /// Messages for the session to hold.
    pub fn messages(&self, list: Vec<Value>) -> Said {
        self.sessions.messages(list)
    }

    /// The session is this from now on.
    pub fn finish(self, said: Said, tokens: Tokens) {
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
        turn.finish(Said::Text, [1, 2].into());
        assert_eq!(*sessions.get(&name, 0).unwrap().1.tokens, [1, 2]);
        let refused = sessions.begin(&name, 0, |_| Err::<(), _>(ApiError::param("x", "y")));
        assert_eq!(status(refused), 400);
        let (turn, ()) = sessions.begin(&name, 0, |_| Ok(())).unwrap();
        sessions.remove(&name, 0).unwrap();
        turn.finish(Said::Text, [1].into());
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
        let new = |owner, id| (SessionId(id), Session::new(owner, Duration::from_secs(9)));
        let some = |owner, ids: std::ops::Range<u64>| {
            status(sessions.insert(ids.map(|id| new(owner, id)).collect()))
        };
        let most = MAX_OF_KEY as u64;
        assert_eq!((some(0, 0..most + 1), some(0, 0..most), some(0, 9_000..9_001)), (429, 200, 429));
        assert_eq!((some(1, most..2 * most - 1), some(2, 9_000..9_002)), (200, 429));
        assert_eq!((some(2, 9_000..9_001), some(3, 9_002..9_003)), (200, 429));
    }

    #[test]
    fn messages_count_once_however_many_forks_hold_them_and_until_the_last_goes() {
        let sessions = Arc::new(Sessions::default());
        let said = sessions.messages(vec![serde_json::json!({"content": "x".repeat(MAX_BYTES / 2)})]);
        let held = || sessions.held.load(Ordering::Relaxed);
        let one = held();
        assert!(one > MAX_BYTES / 2 && one < MAX_BYTES / 2 + 1000);
        let trunk = Session::new(0, Duration::from_secs(9));
        let forks = (0..100).map(|id| (SessionId(id), trunk.branch(said.clone(), Tokens::default())));
        sessions.insert(forks.collect()).unwrap();
        assert_eq!((held(), status(sessions.room())), (one, 200));
        let other = sessions.messages(vec![serde_json::json!(["y".repeat(MAX_BYTES / 2)])]);
        assert_eq!(status(sessions.room()), 429);
        drop((said, other));
        assert_eq!((held(), status(sessions.room())), (one, 200));
        sessions.forget(&(0..100).map(SessionId).collect::<Vec<_>>());
        assert_eq!(held(), 0);
    }
}

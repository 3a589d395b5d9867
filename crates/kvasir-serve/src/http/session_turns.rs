//! Server-side sessions: begins turns, expires sessions and pinned prefixes.

use crate::error::ApiError;
use crate::http::app::App;
use crate::model::marked_prefixes::MarkedPrefix;
use crate::request::reader::Reader;
use crate::session::store::{Session, SessionContent, Turn};
use kvasir_engine::{Pin, SessionId};
use kvasir_kv::Token;
use serde_json::{Map, Value};
use std::{hash::BuildHasher, time::Instant};

/// A chat body with the session's messages prepended, their number, and the turn.
type SessionBody = (Map<String, Value>, usize, Turn);

impl App {
    /// Ends sessions and pins whose time is over.
    pub(super) fn expire_sessions(&self) {
        let expired = self.sessions.expire().into_iter().chain(self.pins.expire(Instant::now()));
        expired.for_each(|id| self.host.end_session(id));
    }

    /// Has the K/V of marked prefixes kept when the request ends.
    pub(super) fn pin(&self, request: &mut kvasir_engine::Request, marked: &[MarkedPrefix]) {
        for MarkedPrefix { len, ttl } in marked {
            let tokens = request.prompt.get(..*len as usize).unwrap_or(&request.prompt);
            let session = SessionId(self.random.hash_one((request.params.salt, tokens)));
            let ended = self.pins.renew(session, request.params.key, *ttl, Instant::now());
            ended.into_iter().for_each(|id| self.host.end_session(id));
            request.params.marks.push(*len);
            request.params.pins.push(Pin { session, len: *len });
        }
    }

    /// Ends the pinned prefix of this id, or all, of one key or of all keys; returns their ids.
    pub(super) fn end_pins(&self, id: Option<SessionId>, owner: Option<u64>) -> Vec<SessionId> {
        let ended = self.pins.remove(id, owner);
        ended.iter().for_each(|id| self.host.end_session(*id));
        ended
    }

    pub(super) fn new_session(&self) -> SessionId {
        loop {
            let id = SessionId(self.random_u64());
            if !self.sessions.contains(id) {
                return id;
            }
        }
    }

    /// Begins a turn in the session named by a chat request, if any.
    pub(super) fn begin_chat_turn(&self, key: u64, reader: &Reader) -> Result<Option<SessionBody>, ApiError> {
        let Some((earlier, turn)) = self.begin_messages_turn(key, reader)? else { return Ok(None) };
        require_single_answer(reader)?;
        let own = reader.list("messages", usize::MAX)?.unwrap_or_default();
        let mut fields = reader.fields().clone();
        fields.insert("messages".into(), earlier.iter().chain(own).cloned().collect());
        Ok(Some((fields, earlier.len(), turn)))
    }

    /// Begins a turn in the session of messages that a request names, if any. Returns the turn and
    /// the messages so far.
    pub(super) fn begin_messages_turn(
        &self,
        key: u64,
        reader: &Reader,
    ) -> Result<Option<(Vec<Value>, Turn)>, ApiError> {
        let Some(name) = reader.text("session")? else { return Ok(None) };
        if reader.flag("continue_final_message", false)? {
            return Err(reader.error("continue_final_message", "cannot be combined with `session`"));
        }
        self.expire_sessions();
        self.sessions.check_memory(key)?;
        let (turn, earlier) = self.sessions.begin(name, key, |session| earlier_messages(session, reader))?;
        Ok(Some((earlier, turn)))
    }

    /// The messages of the session that a request names; empty if it names none.
    pub(super) fn messages_of_session(&self, key: u64, reader: &Reader) -> Result<Vec<Value>, ApiError> {
        let Some(name) = reader.text("session")? else { return Ok(Vec::new()) };
        let (_, session) = self.sessions.get(name, key)?;
        earlier_messages(&session, reader)
    }

    /// Begins a turn in the session named by a completion request, if any; returns its tokens so
    /// far.
    pub(super) fn begin_text_turn(
        &self,
        key: u64,
        reader: &Reader,
    ) -> Result<Option<(Turn, Vec<Token>)>, ApiError> {
        let Some(name) = reader.text("session")? else { return Ok(None) };
        require_single_answer(reader)?;
        if reader.flag("echo", false)? {
            return Err(reader.error("echo", "cannot be combined with `session`"));
        }
        self.expire_sessions();
        let begun = self.sessions.begin(name, key, |session| match session.content {
            SessionContent::Messages(_) => {
                Err(reader.error("session", "holds messages, to which chats append"))
            }
            SessionContent::Text | SessionContent::Empty => Ok(session.tokens.to_vec()),
        })?;
        Ok(Some(begun))
    }
}

/// Fails for a session of text.
fn earlier_messages(session: &Session, reader: &Reader) -> Result<Vec<Value>, ApiError> {
    let earlier = session.messages().map(<[Value]>::to_vec);
    earlier.ok_or_else(|| reader.error("session", "is a session of text, which only completions continue"))
}

/// Sessions append a single answer, so `n` must be 1.
fn require_single_answer(reader: &Reader) -> Result<(), ApiError> {
    match reader.integer("n", i64::MIN..=i64::MAX)? {
        Some(n) if n != 1 => Err(reader.error("n", "must be 1 in a session: fork it for several answers")),
        _ => Ok(()),
    }
}

//! `/v1/sessions` (create, list, show, delete, fork, rewind), and chats and completions within a
//! session.
//!
//! A session retains a conversation and its KV cache across requests. The server keeps messages and
//! tokens (`crate::session`); the engine keeps K/V under the same id. A request in a session holds
//! a `Turn`, which commits only if the answer ends normally; a failed one leaves the session
//! unchanged.

use super::{App, Caller, read_body};
use crate::{
    ApiError,
    answer::Delta,
    host::Piece,
    request::{
        Begin, Body, ChatRequest, FORK, ForkRequest, IgnoredFields, Place, Prompt, REWIND, Reader, SESSIONS,
        SamplingFields, SessionRequest, read_rewind,
    },
    session::{self, Said, Session, Tokens, Turn},
};
use axum::{
    Extension, Json,
    extract::{Path, Request, State},
};
use kvasir_engine::SessionId;
use kvasir_kv::Token;
use serde_json::{Map, Value, json};
use std::sync::Arc;

type Answer = Result<Json<Value>, ApiError>;

/// `POST /v1/sessions`
pub(super) async fn create(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (key, body) = read_body(&app, request, SESSIONS).await?;
    let ignored = body.ignored.clone();
    let request = SessionRequest::read(&body.reader(), app.model.facts.vocab)?;
    drop(body);
    app.known_model(request.model.as_deref())?;
    app.expire_sessions();
    app.sessions.room()?;
    let (said, tokens, param) = match request.begin {
        Begin::Empty => (Said::Nothing, Tokens::default(), "prompt"),
        Begin::Prompt(prompt) => (Said::Text, app.ids(&prompt, true)?.into(), "prompt"),
        Begin::Messages(messages) => {
            let tokens = rendered(&app, &messages, &ignored)?;
            (app.sessions.messages(messages), tokens, "messages")
        }
    };
    let id = app.new_session();
    let name = session::name(id);
    let new = Fresh::insert(&app, vec![(id, Session::new(key, request.ttl))])?;
    fill(&app, key, &name, param, said, tokens).await?;
    new.keep();
    one(&app, key, &name)
}

/// New sessions not yet reported to the client. Dropping this removes them again, when the request
/// fails or the client disconnects.
struct Fresh<'a> {
    app: &'a App,
    ids: Vec<SessionId>,
}

impl<'a> Fresh<'a> {
    fn insert(app: &'a App, sessions: Vec<(SessionId, Session)>) -> Result<Self, ApiError> {
        let ids = sessions.iter().map(|(id, _)| *id).collect();
        app.sessions.insert(sessions)?;
        Ok(Self { app, ids })
    }

    /// Commits the sessions: the client now learns their ids.
    fn keep(mut self) {
        self.ids.clear();
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.app.sessions.forget(&self.ids);
        self.ids.iter().for_each(|id| self.app.host.end_session(*id));
    }
}

/// Prefills the initial tokens of a new session.
async fn fill(
    app: &Arc<App>,
    key: u64,
    name: &str,
    param: &str,
    said: Said,
    tokens: Tokens,
) -> Result<(), ApiError> {
    let (turn, ()) = app.sessions.begin(name, key, |_| Ok(()))?;
    if !tokens.is_empty() {
        let facts = &app.model.facts;
        let mut fields = SamplingFields::read(&Body::default().reader(), &facts.sampling, facts.vocab)?;
        fields.length.max_tokens = Some(0);
        let mut order = app.order(param, tokens.to_vec(), &fields, key)?;
        order.request.params.session = Some(turn.id());
        for mut answer in app.submit(vec![order], 1)? {
            let mut piece = Piece::default();
            let summary = loop {
                answer.next(&mut piece).await?;
                if let Some(summary) = piece.ended {
                    break summary;
                }
            };
            crate::host::failure(summary.finish).map_or(Ok(()), Err)?;
        }
    }
    turn.finish(said, tokens);
    Ok(())
}

/// `GET /v1/sessions`
pub(super) async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Answer {
    app.expire_sessions();
    let data: Vec<Value> =
        app.sessions.of(caller.0).iter().map(|(id, session)| object(&app, *id, session)).collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

/// `GET /v1/sessions/ID`
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Answer {
    app.expire_sessions();
    one(&app, caller.0, &name)
}

/// `DELETE /v1/sessions/ID`
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Answer {
    app.expire_sessions();
    app.host.end_session(app.sessions.remove(&name, caller.0)?);
    Ok(Json(json!({"id": name, "object": "session", "deleted": true})))
}

/// `POST /v1/sessions/ID/fork`
pub(super) async fn fork(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Answer {
    let (key, body) = read_body(&app, request, FORK).await?;
    let request = ForkRequest::read(&body.reader())?;
    drop(body);
    app.expire_sessions();
    let (from, source) = app.sessions.get(&name, key)?;
    let (said, tokens) = match request.at {
        None => (source.said.clone(), source.tokens.clone()),
        Some(place) => cut(&app, &source, place, "at")?,
    };
    let forks: Vec<SessionId> = (0..request.n).map(|_| app.new_session()).collect();
    let branch = |id: &SessionId| (*id, source.branch(said.clone(), tokens.clone()));
    let new = Fresh::insert(&app, forks.iter().map(branch).collect())?;
    app.host.fork(from, &forks, common(&source.tokens, &tokens)).await?;
    new.keep();
    let data: Result<Vec<Value>, ApiError> = forks
        .iter()
        .map(|id| app.sessions.get(&session::name(*id), key).map(|(id, session)| object(&app, id, &session)))
        .collect();
    Ok(Json(json!({"object": "list", "data": data?})))
}

/// `POST /v1/sessions/ID/rewind`
pub(super) async fn rewind(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    let (key, body) = read_body(&app, request, REWIND).await?;
    let place = read_rewind(&body.reader())?;
    drop(body);
    app.expire_sessions();
    let (turn, source) = app.sessions.begin(&name, key, |session| Ok(session.clone()))?;
    let (said, tokens) = cut(&app, &source, place, "to")?;
    app.host.rewind(turn.id(), common(&source.tokens, &tokens)).await?;
    turn.finish(said, tokens);
    one(&app, key, &name)
}

fn one(app: &App, key: u64, name: &str) -> Answer {
    let (id, session) = app.sessions.get(name, key)?;
    Ok(Json(object(app, id, &session)))
}

fn object(app: &App, id: SessionId, session: &Session) -> Value {
    let length = session.tokens.len();
    json!({
        "id": session::name(id),
        "object": "session",
        "model": app.model.name,
        "length": length,
        "messages": session.messages().map(<[Value]>::len),
        "cached": (app.host.kept(id) as usize).min(length),
        "ttl": session.ttl.as_secs(),
        "expires": super::seconds() + session.left().as_secs(),
    })
}

/// Length of the common token prefix.
fn common(a: &[Token], b: &[Token]) -> u32 {
    a.iter().zip(b).take_while(|(a, b)| a == b).count() as u32
}

/// Tokens of a conversation rendered without a generation prompt.
fn rendered(app: &App, messages: &[Value], ignored: &IgnoredFields) -> Result<Tokens, ApiError> {
    let mut body = Map::new();
    body.insert("messages".into(), messages.into());
    body.insert("add_generation_prompt".into(), false.into());
    let facts = &app.model.facts;
    Ok(app
        .model
        .chat_prompt(&ChatRequest::read(&Reader::new(&body, ignored), &facts.sampling, facts.vocab)?)?
        .into())
}

/// The session's content truncated at a place.
fn cut(app: &App, session: &Session, place: Place, param: &str) -> Result<(Said, Tokens), ApiError> {
    let beyond = |what: &str, n: u32, all: usize| {
        ApiError::param(param, format!("`{param}` counts {n} {what}; of those the session has {all}"))
    };
    let length = session.tokens.len();
    match (place, &session.said) {
        (Place::Token(n), _) if n as usize > length => Err(beyond("tokens", n, length)),
        (Place::Token(0) | Place::Message(0), _) => Ok((Said::Nothing, Tokens::default())),
        (Place::Token(n), _) if n as usize == length => Ok((session.said.clone(), session.tokens.clone())),
        (Place::Token(n), Said::Text | Said::Nothing) => {
            Ok((Said::Text, session.tokens[..n as usize].into()))
        }
        (Place::Token(_), Said::Messages(_)) => Err(ApiError::param(
            param,
            format!("`{param}` counts tokens, and this is a session of messages: give {{\"message\": k}}"),
        )),
        (Place::Message(k), Said::Messages(messages)) => match messages.get(..k as usize) {
            None => Err(beyond("messages", k, messages.len())),
            Some(all) if all.len() == messages.len() => Ok((session.said.clone(), session.tokens.clone())),
            Some(kept) => {
                Ok((app.sessions.messages(kept.to_vec()), rendered(app, kept, &IgnoredFields::default())?))
            }
        },
        (Place::Message(_), Said::Text | Said::Nothing) => {
            Err(ApiError::param(param, format!("`{param}` counts messages, and this session has none")))
        }
    }
}

/// A chat body with the session's messages prepended, their number, and the turn.
type InSession = (Map<String, Value>, usize, Turn);

impl App {
    /// Removes sessions whose TTL has elapsed.
    pub(super) fn expire_sessions(&self) {
        self.sessions.expire().into_iter().for_each(|id| self.host.end_session(id));
    }

    fn new_session(&self) -> SessionId {
        loop {
            let id = SessionId(self.noise());
            if !self.sessions.holds(id) {
                return id;
            }
        }
    }

    pub(super) fn ids(&self, prompt: &Prompt, begins: bool) -> Result<Vec<Token>, ApiError> {
        match prompt {
            Prompt::Text(text) => self.model.encode(text, begins),
            Prompt::Ids(ids) => Ok(ids.clone()),
        }
    }

    /// Begins a turn in the session named by a chat request, if any.
    pub(super) fn chat_in_session(&self, key: u64, reader: &Reader) -> Result<Option<InSession>, ApiError> {
        let Some(name) = reader.text("session")? else { return Ok(None) };
        alone(reader)?;
        if reader.flag("continue_final_message", false)? {
            return Err(reader.error("continue_final_message", "cannot be combined with `session`"));
        }
        self.expire_sessions();
        self.sessions.room()?;
        let own = reader.list("messages", usize::MAX)?.unwrap_or_default();
        let (turn, earlier) = self.sessions.begin(name, key, |session| {
            let earlier = session.messages().map(<[Value]>::to_vec);
            earlier.ok_or_else(|| reader.error("session", "holds a text, to which completions append"))
        })?;
        let mut fields = reader.fields().clone();
        fields.insert("messages".into(), earlier.iter().chain(own).cloned().collect());
        Ok(Some((fields, earlier.len(), turn)))
    }

    /// Begins a turn in the session named by a completion request, if any; returns its tokens so
    /// far.
    pub(super) fn text_in_session(
        &self,
        key: u64,
        reader: &Reader,
    ) -> Result<Option<(Turn, Vec<Token>)>, ApiError> {
        let Some(name) = reader.text("session")? else { return Ok(None) };
        alone(reader)?;
        if reader.flag("echo", false)? {
            return Err(reader.error("echo", "cannot be combined with `session`"));
        }
        self.expire_sessions();
        let begun = self.sessions.begin(name, key, |session| match session.said {
            Said::Messages(_) => Err(reader.error("session", "holds messages, to which chats append")),
            Said::Text | Said::Nothing => Ok(session.tokens.to_vec()),
        })?;
        Ok(Some(begun))
    }
}

/// Sessions append a single answer, so `n` must be 1.
fn alone(reader: &Reader) -> Result<(), ApiError> {
    match reader.integer("n", i64::MIN..=i64::MAX)? {
        Some(n) if n != 1 => Err(reader.error("n", "must be 1 in a session: fork it for several answers")),
        _ => Ok(()),
    }
}

/// Collects what a normally ended answer appends to its session.
pub(super) struct Note {
    turn: Turn,
    /// Prompt tokens, then answer tokens.
    tokens: Vec<Token>,
    /// The conversation; `None` for a raw text session.
    messages: Option<Vec<Value>>,
    call_ids: String,
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

impl Note {
    /// For a chat with this body; tool call ids have the prefix `call_ids`.
    pub(super) fn of_chat(turn: Turn, body: &Map<String, Value>, call_ids: String) -> Self {
        let messages = body.get("messages").and_then(Value::as_array).cloned();
        Self { messages: Some(messages.unwrap_or_default()), call_ids, ..Self::of_text(turn) }
    }

    /// For a raw completion.
    pub(super) fn of_text(turn: Turn) -> Self {
        let (tokens, call_ids, content, reasoning, calls) = Default::default();
        Self { turn, tokens, messages: None, call_ids, content, reasoning, calls }
    }

    /// Binds the engine request to the session.
    pub(super) fn follow(&mut self, request: &mut kvasir_engine::Request) {
        request.params.session = Some(self.turn.id());
        self.tokens.clone_from(&request.prompt);
    }

    pub(super) fn token(&mut self, token: Token) {
        self.tokens.push(token);
    }

    pub(super) fn deltas(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content += text,
                Delta::Reasoning(text) => self.reasoning += text,
                Delta::CallBegin { name, .. } => self.calls.push((name.clone(), String::new())),
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        *arguments += text;
                    }
                }
            }
        }
    }

    /// Commits the turn. `by_token`: the answer ended with an end-of-sequence or stop token.
    pub(super) fn end(mut self, by_token: bool) {
        let Some(mut messages) = self.messages.take() else {
            // An end-of-sequence token is not part of a text that will be continued.
            if by_token {
                self.tokens.pop();
            }
            return self.turn.finish(Said::Text, self.tokens.into());
        };
        let call = |(i, (name, arguments)): (usize, (String, String))| {
            let id = format!("{}_{i}", self.call_ids);
            // A truncated call cannot be answered, and no template could render it.
            let whole = serde_json::from_str::<Map<String, Value>>(&arguments).is_ok();
            whole.then(
                || json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
            )
        };
        let calls: Vec<Value> = self.calls.into_iter().enumerate().filter_map(call).collect();
        let content =
            if self.content.is_empty() && !calls.is_empty() { Value::Null } else { self.content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
        let said = self.turn.messages(messages);
        self.turn.finish(said, self.tokens.into());
    }
}

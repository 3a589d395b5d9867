//! `/v1/sessions` (create, list, show, delete, fork, rewind, cut, keep), and chats and completions within a
//! session.
//!
//! A session retains a conversation and its KV cache across requests. The server keeps messages and
//! tokens (`session::store`); the engine keeps K/V under the same id. A request in a session holds
//! a `Turn`, which commits only if the answer ends normally; a failed one leaves the session
//! unchanged.

use crate::context::ignored_fields::IgnoredFields;
use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::answers::single_token;
use crate::http::app::{App, unix_seconds};
use crate::http::body::read_body;
use crate::request::body::Body;
use crate::request::chat::ChatRequest;
use crate::request::fields::{CUT, FORK, REWIND, SESSIONS};
use crate::request::reader::Reader;
use crate::request::sampling::SamplingFields;
use crate::request::sessions::{
    ForkRequest, InitialContent, SessionPosition, SessionRange, SessionRequest, read_cut, read_rewind,
};
use crate::session::store::{self, Session, SessionContent, Tokens};
use crate::work_pool::fair_queue::Cost;
use axum::{
    Extension, Json,
    extract::{Path, Request, State},
};
use kvasir_engine::SessionId;
use kvasir_kv::Token;
use serde_json::{Map, Value, json};
use std::{ops::Range, sync::Arc, time::Duration};

type Answer = Result<Json<Value>, ApiError>;

/// `POST /v1/sessions`
pub(crate) async fn create(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (key, body) = read_body(&app, request, SESSIONS).await?;
    let initial = app.run_work(body.cost(), move |app| InitialSession::read(app, key, &body)).await?;
    let id = app.new_session();
    let name = store::name(id);
    let new = NewSessions::insert(&app, vec![(id, Session::new(id, key, initial.ttl))])?;
    prefill(&app, key, &name, initial).await?;
    new.commit();
    session_response(&app, key, &name)
}

/// What a new session holds.
struct InitialSession {
    ttl: Duration,
    content: SessionContent,
    tokens: Tokens,
    /// The field that `tokens` come from.
    param: &'static str,
}

impl InitialSession {
    fn read(app: &App, key: u64, body: &Body) -> Result<Self, ApiError> {
        let request = SessionRequest::read(&body.reader(), app.model.facts.vocab)?;
        app.model_names().check(request.model.as_deref())?;
        app.expire_sessions();
        app.sessions.check_memory(key)?;
        let (content, tokens, param) = match request.initial {
            InitialContent::Empty => (SessionContent::Empty, Tokens::default(), "prompt"),
            InitialContent::Prompt(prompt) => {
                app.check_bytes("prompt", &prompt, false)?;
                (SessionContent::Text, app.ids(&prompt, true)?.into(), "prompt")
            }
            InitialContent::Messages(messages) => {
                let tokens = rendered(app, &messages, &body.ignored)?;
                (app.sessions.messages(key, messages), tokens, "messages")
            }
        };
        Ok(Self { ttl: request.ttl, content, tokens, param })
    }
}

/// New sessions not yet reported to the client. Dropping this removes them again, when the request
/// fails or the client disconnects.
struct NewSessions<'a> {
    app: &'a App,
    ids: Vec<SessionId>,
}

impl<'a> NewSessions<'a> {
    fn insert(app: &'a App, sessions: Vec<(SessionId, Session)>) -> Result<Self, ApiError> {
        let ids = sessions.iter().map(|(id, _)| *id).collect();
        app.sessions.insert(sessions)?;
        Ok(Self { app, ids })
    }

    /// Commits the sessions: the client now learns their ids.
    fn commit(mut self) {
        self.ids.clear();
    }
}

impl Drop for NewSessions<'_> {
    fn drop(&mut self) {
        self.app.sessions.remove_all(&self.ids);
        self.ids.iter().for_each(|id| self.app.host.end_session(*id));
    }
}

/// Prefills the initial tokens of a new session.
async fn prefill(app: &Arc<App>, key: u64, name: &str, initial: InitialSession) -> Result<(), ApiError> {
    let InitialSession { content, tokens, param, .. } = initial;
    let (turn, ()) = app.sessions.begin(name, key, |_| Ok(()))?;
    if !tokens.is_empty() {
        let facts = &app.model.facts;
        let mut fields = SamplingFields::read(&Body::default().reader(), &facts.sampling, facts.vocab)?;
        fields.length.max_tokens = Some(0);
        let mut submission = app.submission(param, tokens.to_vec(), &fields, key)?;
        submission.request.params.session = Some(turn.id());
        single_token::run(app, submission).await?;
    }
    turn.finish(content, tokens);
    Ok(())
}

/// `GET /v1/sessions`
pub(crate) async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Answer {
    app.expire_sessions();
    let data: Vec<Value> =
        app.sessions.owned_by(caller.0).iter().map(|(id, session)| object(&app, *id, session)).collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

/// `GET /v1/sessions/ID`
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Answer {
    app.expire_sessions();
    session_response(&app, caller.0, &name)
}

/// `DELETE /v1/sessions/ID`
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Answer {
    app.expire_sessions();
    app.host.end_session(app.sessions.remove(&name, caller.0)?);
    Ok(Json(json!({"id": name, "object": "session", "deleted": true})))
}

/// `POST /v1/sessions/ID/fork`
pub(crate) async fn fork(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Answer {
    let (key, body) = read_body(&app, request, FORK).await?;
    let request = ForkRequest::read(&body.reader())?;
    drop(body);
    app.expire_sessions();
    let (from, source) = app.sessions.get(&name, key)?;
    let (source, content, tokens) = match request.at {
        None => (source.clone(), source.content, source.tokens),
        Some(position) => {
            let truncated = app.run_work(Cost::Light, move |app| {
                let (content, tokens) = truncated(app, &source, position, "at")?;
                Ok((source, content, tokens))
            });
            truncated.await?
        }
    };
    let forks: Vec<SessionId> = (0..request.n).map(|_| app.new_session()).collect();
    let branch = |id: &SessionId| (*id, source.fork(content.clone(), tokens.clone()));
    let new = NewSessions::insert(&app, forks.iter().map(branch).collect())?;
    app.host.fork(from, &forks, common_prefix(&source.tokens, &tokens)).await?;
    new.commit();
    let data: Result<Vec<Value>, ApiError> = forks
        .iter()
        .map(|id| app.sessions.get(&store::name(*id), key).map(|(id, session)| object(&app, id, &session)))
        .collect();
    Ok(Json(json!({"object": "list", "data": data?})))
}

/// `POST /v1/sessions/ID/rewind`
pub(crate) async fn rewind(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    let (key, body) = read_body(&app, request, REWIND).await?;
    let position = read_rewind(&body.reader())?;
    drop(body);
    app.expire_sessions();
    let (turn, source) = app.sessions.begin(&name, key, |session| Ok(session.clone()))?;
    let all = source.tokens.clone();
    let truncated = app.run_work(Cost::Light, move |app| truncated(app, &source, position, "to"));
    let (content, tokens) = truncated.await?;
    app.host.rewind(turn.id(), common_prefix(&all, &tokens)).await?;
    turn.finish(content, tokens);
    session_response(&app, key, &name)
}

/// `POST /v1/sessions/ID/cut`
pub(crate) async fn cut(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request) -> Answer {
    let (key, body) = read_body(&app, request, CUT).await?;
    let range = read_cut(&body.reader())?;
    drop(body);
    app.expire_sessions();
    if let Some(why) = app.host.cut_obstacle() {
        return Err(ApiError::param("session", format!("nothing can be cut out of a session: {why}")));
    }
    let (turn, source) = app.sessions.begin(&name, key, |session| Ok(session.clone()))?;
    let all = source.tokens.clone();
    let shortened = app.run_work(Cost::Light, move |app| without(app, &source, range)).await?;
    let Shortened { content, tokens, range } = shortened;
    // What follows the range need not be the same without it, as with a template that rewrites.
    let left = [&all[..range.start as usize], &all[range.end as usize..]].concat();
    app.host.cut(turn.id(), range).await?;
    app.host.rewind(turn.id(), common_prefix(&left, &tokens)).await?;
    turn.finish(content, tokens);
    session_response(&app, key, &name)
}

/// A session without a part of it.
struct Shortened {
    content: SessionContent,
    tokens: Tokens,
    /// The tokens of the part; empty if they are not known.
    range: Range<u32>,
}

/// The session's content without a part of it.
fn without(app: &App, session: &Session, range: SessionRange) -> Result<Shortened, ApiError> {
    let (from, to) = match &range {
        SessionRange::Tokens(range) => {
            (SessionPosition::Token(range.start), SessionPosition::Token(range.end))
        }
        SessionRange::Messages(range) => {
            (SessionPosition::Message(range.start), SessionPosition::Message(range.end))
        }
    };
    let (_, through) = truncated(app, session, to, "to")?;
    let (_, before) = truncated(app, session, from, "from")?;
    let all = &session.tokens;
    let (content, tokens): (_, Tokens) = match range {
        SessionRange::Tokens(_) => {
            (SessionContent::Text, [&before[..], &all[through.len()..]].concat().into())
        }
        SessionRange::Messages(range) => {
            let mut kept = session.messages().unwrap_or_default().to_vec();
            kept.drain(range.start as usize..range.end as usize);
            let tokens = if kept.is_empty() {
                Tokens::default()
            } else {
                rendered(app, &kept, &IgnoredFields::default())?
            };
            (app.sessions.messages(session.owner(), kept), tokens)
        }
    };
    let content = if tokens.is_empty() { SessionContent::Empty } else { content };
    let range = if all.starts_with(&before) && all.starts_with(&through) && before.len() <= through.len() {
        before.len() as u32..through.len() as u32
    } else {
        0..0
    };
    Ok(Shortened { content, tokens, range })
}

/// `POST /v1/sessions/ID/keep`
pub(crate) async fn keep(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Answer {
    app.expire_sessions();
    let deleted = app.sessions.keep(&name, caller.0)?;
    deleted.iter().for_each(|id| app.host.end_session(*id));
    let Json(mut session) = session_response(&app, caller.0, &name)?;
    session["deleted"] = deleted.into_iter().map(store::name).collect();
    Ok(Json(session))
}

fn session_response(app: &App, key: u64, name: &str) -> Answer {
    let (id, session) = app.sessions.get(name, key)?;
    Ok(Json(object(app, id, &session)))
}

fn object(app: &App, id: SessionId, session: &Session) -> Value {
    let length = session.tokens.len();
    json!({
        "id": store::name(id),
        "object": "session",
        "model": app.model.name,
        "length": length,
        "messages": session.messages().map(<[Value]>::len),
        "cached": (app.host.retained_tokens(id) as usize).min(length),
        "ttl": session.ttl.as_secs(),
        "expires": unix_seconds() + session.remaining_ttl().as_secs(),
    })
}

/// Length of the common token prefix.
fn common_prefix(a: &[Token], b: &[Token]) -> u32 {
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
        .bounded_chat_prompt(&ChatRequest::read(&Reader::new(&body, ignored), &facts.sampling, facts.vocab)?)?
        .into())
}

/// The session's content truncated at a position.
fn truncated(
    app: &App,
    session: &Session,
    position: SessionPosition,
    param: &str,
) -> Result<(SessionContent, Tokens), ApiError> {
    let beyond = |what: &str, n: u32, all: usize| {
        ApiError::param(param, format!("`{param}` counts {n} {what}; of those the session has {all}"))
    };
    let length = session.tokens.len();
    match (position, &session.content) {
        (SessionPosition::Token(n), _) if n as usize > length => Err(beyond("tokens", n, length)),
        (SessionPosition::Token(0) | SessionPosition::Message(0), _) => {
            Ok((SessionContent::Empty, Tokens::default()))
        }
        (SessionPosition::Token(n), _) if n as usize == length => {
            Ok((session.content.clone(), session.tokens.clone()))
        }
        (SessionPosition::Token(n), SessionContent::Text | SessionContent::Empty) => {
            Ok((SessionContent::Text, session.tokens[..n as usize].into()))
        }
        (SessionPosition::Token(_), SessionContent::Messages(_)) => Err(ApiError::param(
            param,
            format!("`{param}` counts tokens, and this is a session of messages: give {{\"message\": k}}"),
        )),
        (SessionPosition::Message(k), SessionContent::Messages(messages)) => match messages.get(..k as usize)
        {
            None => Err(beyond("messages", k, messages.len())),
            Some(all) if all.len() == messages.len() => Ok((session.content.clone(), session.tokens.clone())),
            Some(kept) => Ok((
                app.sessions.messages(session.owner(), kept.to_vec()),
                rendered(app, kept, &IgnoredFields::default())?,
            )),
        },
        (SessionPosition::Message(_), SessionContent::Text | SessionContent::Empty) => {
            Err(ApiError::param(param, format!("`{param}` counts messages, and this session has none")))
        }
    }
}

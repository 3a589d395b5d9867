//! Parses `/v1/sessions` requests: create, fork, rewind and cut.

use crate::error::ApiError;
use crate::request::completions::{self, Prompt};
use crate::request::fields::{CUT, FORK, REWIND, SESSIONS};
use crate::request::reader::Reader;
use serde_json::Value;
use std::ops::Range;
use std::time::Duration;

/// Maximum and default time to live of an idle session, in seconds.
const MAX_TTL: i64 = 7 * 24 * 3600;
const TTL: i64 = 3600;
/// Maximum forks per request.
const MAX_FORKS: i64 = 128;

/// A validated `POST /v1/sessions`.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRequest {
    /// The requested model.
    pub model: Option<String>,
    /// Initial content.
    pub initial: InitialContent,
    /// Time to live while idle.
    pub ttl: Duration,
}

/// Initial content of a session.
#[derive(Clone, Debug, PartialEq)]
pub enum InitialContent {
    /// Empty.
    Empty,
    /// Chat messages.
    Messages(Vec<Value>),
    /// Raw text or token ids.
    Prompt(Prompt),
}

/// A position in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPosition {
    /// After this many tokens.
    Token(u32),
    /// After this many messages.
    Message(u32),
}

/// A validated `POST /v1/sessions/ID/fork`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkRequest {
    /// Number of forks.
    pub n: u32,
    /// Fork position; the end if absent.
    pub at: Option<SessionPosition>,
}

impl SessionRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader, vocab: u32) -> Result<Self, ApiError> {
        body.classify(SESSIONS)?;
        let initial = match (body.get("messages"), body.get("prompt")) {
            (Some(_), Some(_)) => return Err(body.error("prompt", "and `messages` cannot both be given")),
            (None, None) => InitialContent::Empty,
            (Some(_), None) => {
                InitialContent::Messages(body.list("messages", usize::MAX)?.unwrap_or_default().to_vec())
            }
            (None, Some(_)) => InitialContent::Prompt(completions::one_prompt(body, vocab)?),
        };
        let ttl = body.integer("ttl", 1..=MAX_TTL)?.unwrap_or(TTL);
        let ttl = Duration::from_secs(ttl.unsigned_abs());
        Ok(Self { model: body.text("model")?.map(str::to_owned), initial, ttl })
    }
}

impl ForkRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader) -> Result<Self, ApiError> {
        body.classify(FORK)?;
        let n = body.integer("n", 1..=MAX_FORKS)?.map_or(1, |n| n as u32);
        Ok(Self { n, at: position(body, "at")? })
    }
}

/// Parses the target position of `POST /v1/sessions/ID/rewind`.
pub fn read_rewind(body: &Reader) -> Result<SessionPosition, ApiError> {
    body.classify(REWIND)?;
    position(body, "to")?.ok_or_else(|| body.error("to", "is missing"))
}

/// A part of a session, counted in tokens or in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRange {
    /// Tokens.
    Tokens(Range<u32>),
    /// Messages.
    Messages(Range<u32>),
}

/// Parses the range of `POST /v1/sessions/ID/cut`.
pub fn read_cut(body: &Reader) -> Result<SessionRange, ApiError> {
    body.classify(CUT)?;
    let end = |field| position(body, field)?.ok_or_else(|| body.error(field, "is missing"));
    let range = match (end("from")?, end("to")?) {
        (SessionPosition::Token(from), SessionPosition::Token(to)) if from < to => {
            SessionRange::Tokens(from..to)
        }
        (SessionPosition::Message(from), SessionPosition::Message(to)) if from < to => {
            SessionRange::Messages(from..to)
        }
        (SessionPosition::Token(_), SessionPosition::Token(_))
        | (SessionPosition::Message(_), SessionPosition::Message(_)) => {
            return Err(body.error("to", "must be greater than `from`"));
        }
        (SessionPosition::Token(_), SessionPosition::Message(_))
        | (SessionPosition::Message(_), SessionPosition::Token(_)) => {
            return Err(body.error("to", "must count what `from` counts, tokens or messages"));
        }
    };
    Ok(range)
}

fn position(body: &Reader, field: &str) -> Result<Option<SessionPosition>, ApiError> {
    let max = i64::from(u32::MAX);
    match body.get(field) {
        None => Ok(None),
        Some(Value::Object(_)) => {
            let Some(object) = body.object(field)? else { return Ok(None) };
            object.only(&["message"])?;
            let message = object.integer("message", 0..=max)?;
            let message = message.ok_or_else(|| object.error("message", "is missing"))?;
            Ok(Some(SessionPosition::Message(message as u32)))
        }
        Some(_) => Ok(body.integer(field, 0..=max)?.map(|token| SessionPosition::Token(token as u32))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
    use serde_json::json;

    fn refusing() -> IgnoredFields {
        IgnoredFields::default().with_rule(UnknownFields::Refuse)
    }

    fn param<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        result.unwrap_err().param.unwrap()
    }

    #[test]
    fn positions_are_tokens_or_messages() {
        let fork = |body: Value| ForkRequest::read(&Reader::new(body.as_object().unwrap(), &refusing()));
        assert_eq!(fork(json!({})).unwrap(), ForkRequest { n: 1, at: None });
        let at = |body| fork(body).unwrap().at;
        assert_eq!(at(json!({"at": 5})), Some(SessionPosition::Token(5)));
        assert_eq!(at(json!({"n": 8, "at": {"message": 2}})), Some(SessionPosition::Message(2)));
        assert_eq!(param(fork(json!({"n": 0}))), "n");
        assert_eq!(param(fork(json!({"n": 129}))), "n");
        assert_eq!(param(fork(json!({"at": -1}))), "at");
        assert_eq!(param(fork(json!({"at": "end"}))), "at");
        assert_eq!(param(fork(json!({"at": {}}))), "at.message");
        assert_eq!(param(fork(json!({"at": {"message": 1, "x": 1}}))), "at.x");
        assert_eq!(param(fork(json!({"to": 1}))), "to");
        let rewind = |body: Value| read_rewind(&Reader::new(body.as_object().unwrap(), &refusing()));
        assert_eq!(rewind(json!({"to": 0})).unwrap(), SessionPosition::Token(0));
        assert_eq!(param(rewind(json!({}))), "to");
        let cut = |body: Value| read_cut(&Reader::new(body.as_object().unwrap(), &refusing()));
        assert_eq!(cut(json!({"from": 2, "to": 5})).unwrap(), SessionRange::Tokens(2..5));
        let messages = json!({"from": {"message": 0}, "to": {"message": 1}});
        assert_eq!(cut(messages).unwrap(), SessionRange::Messages(0..1));
        assert_eq!(param(cut(json!({"to": 5}))), "from");
        assert_eq!(param(cut(json!({"from": 5}))), "to");
        assert_eq!(param(cut(json!({"from": 5, "to": 5}))), "to");
        assert_eq!(param(cut(json!({"from": 5, "to": {"message": 6}}))), "to");
    }

    #[test]
    fn sessions_start_with_messages_or_a_prompt() {
        let read =
            |body: Value| SessionRequest::read(&Reader::new(body.as_object().unwrap(), &refusing()), 100);
        let empty = read(json!({})).unwrap();
        assert_eq!((empty.initial, empty.ttl), (InitialContent::Empty, Duration::from_secs(3600)));
        assert_eq!(
            read(json!({"prompt": [1, 2]})).unwrap().initial,
            InitialContent::Prompt(Prompt::Ids(vec![1, 2]))
        );
        assert_eq!(param(read(json!({"prompt": "a", "messages": []}))), "prompt");
        assert_eq!(param(read(json!({"prompt": ["a", "b"]}))), "prompt");
        assert_eq!(param(read(json!({"prompt": [100]}))), "prompt");
        assert_eq!(param(read(json!({"messages": "hello"}))), "messages");
        assert_eq!(param(read(json!({"ttl": 0}))), "ttl");
        assert_eq!(param(read(json!({"ttl": 1e9}))), "ttl");
        assert_eq!(param(read(json!({"name": "x"}))), "name");
    }
}

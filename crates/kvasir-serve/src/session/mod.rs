//! Sessions: conversations kept across requests, and what an answer appends to them.
//!
//! Knows no API and no socket; builds on `answer`. The engine retains their K/V (`host`).

pub(crate) mod conversations;
pub(crate) mod event_log;
pub(crate) mod pins;
pub(crate) mod recorder;
pub(crate) mod responses;
pub(crate) mod shared_memory;
pub(crate) mod slots;
pub(crate) mod store;

pub use crate::session::store::{
    MAX_SESSIONS, Messages, Session, SessionContent, Sessions, Tokens, Turn, name,
};

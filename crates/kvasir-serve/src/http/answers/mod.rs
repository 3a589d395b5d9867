//! The answers of one request: submission, increments from tokens, usage, and the event stream.
//!
//! Knows no endpoint; builds on `http::app`.

pub(crate) mod answer_stream;
pub(crate) mod json_answer;
pub(crate) mod progress;
pub(crate) mod reply;
pub(crate) mod single_token;
pub(crate) mod sse;
pub(crate) mod submit_chat;
pub(crate) mod usage;

//! HTTP layer (axum): routes and handlers of the OpenAI- and Anthropic-compatible APIs, sessions,
//! tokenization and metrics.
//!
//! Each handler parses and validates its body, submits an engine request, drops the body, and then
//! writes the response as JSON or SSE.

mod access;
mod announce;
mod app;
mod ask;
mod auth;
mod authorize;
mod body;
mod chat;
mod completions;
mod connection;
mod cors;
mod embeddings;
mod error_response;
mod gate;
mod hosts;
mod listen;
mod messages;
mod openapi;
mod origins;
mod page;
mod reply;
mod reserve;
mod responses;
mod router;
mod sessions;
mod speaker;
mod sse;
mod status;
mod steps;
mod tls;
mod tokens;
mod usage;

pub use access::AccessControl;
pub use app::{App, ClientRules, Live};
pub use auth::Keys;
pub use gate::Gate;
pub use hosts::Hosts;
pub use listen::{serve, serve_probes};
pub use origins::Origins;
pub use speaker::{Ended, Gain, Speaker};
pub use tls::tls;
pub use tokio_rustls::TlsAcceptor;

//! HTTP layer (axum): sockets, access rules, routes and handlers of the OpenAI- and
//! Anthropic-compatible APIs.
//!
//! In reading order: `transport` (listener, TLS), `access` (keys, origins, hosts), `app` (shared
//! state) with `rank_config`, `submission`, `erasures`, `model_names`, `model_fetcher`,
//! `session_turns`, `slot_files` and `slot_transfer`, `body`, `query`, `answers` (from tokens to
//! increments), `api` (one file per endpoint),
//! `middleware`, `router` with `missing_route`, `connections`, `loading`, `server`. Each handler
//! parses and validates its body, submits an engine request, drops the body, and then writes the
//! response as JSON or SSE.

pub(crate) mod access;
pub(crate) mod answers;
pub(crate) mod api;
pub(crate) mod app;
pub(crate) mod body;
pub(crate) mod connections;
pub(crate) mod erasures;
pub(crate) mod error_response;
pub(crate) mod loading;
pub(crate) mod middleware;
mod missing_route;
mod model_fetcher;
mod model_names;
pub(crate) mod query;
pub(crate) mod rank_config;
pub(crate) mod router;
pub(crate) mod server;
mod session_turns;
pub(crate) mod slot_files;
mod slot_transfer;
mod submission;
pub(crate) mod transport;

pub use crate::http::access::AccessControl;
pub use crate::http::access::api_keys::{ApiKey, Keys};
pub use crate::http::access::hosts::Hosts;
pub use crate::http::access::origins::Origins;
pub use crate::http::access::rate_limits::{RateLimit, RateLimits};
pub use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome, AnswerStream};
pub use crate::http::app::{App, ClientRules, Live};
pub use crate::http::loading::Loading;
pub use crate::http::model_fetcher::{FetchModel, FetchedFile};
pub use crate::http::rank_config::{PublishedStreams, RankConfig};
pub use crate::http::server::{Probes, serve, start_probes};
pub use crate::http::slot_files::SlotFiles;
pub use crate::http::transport::limit_listener::LimitListener;
pub use crate::http::transport::tls::TlsFiles;
pub use tokio_rustls::TlsAcceptor;

//! HTTP server of Kvasir: OpenAI- and Anthropic-compatible APIs, streaming, metrics. Prompts,
//! answer parsing and structured output come from `kvasir-chat`.
//!
//! Folders in reading order; each imports only from those before it:
//!
//! - `error`, `timestamp`, `context`, `memory_budget`: API errors, dates, the context of one HTTP request,
//!   memory of request handling.
//! - `work_pool`: threads for CPU-bound request work, whose run time depends on client input.
//! - `metrics`, `report`: Prometheus metrics; access log and traces.
//! - `request`: parses and validates bodies, one file per API.
//! - `model`: the served model: prompts, constraints, limits.
//! - `host`: runs the engine on its thread.
//! - `session`: conversations kept across requests.
//! - `http`: sockets, access rules, handlers and routes.
//!
//! Must not know kernels, KV cache slots or scheduling policies.

#![forbid(unsafe_code)]

mod context;
mod error;
pub mod host;
pub mod http;
mod memory_budget;
pub mod metrics;
pub mod model;
pub mod report;
pub mod request;
pub mod session;
mod timestamp;
mod work_pool;

pub use crate::context::request_context::RequestContext;
pub use crate::error::ApiError;
pub use crate::host::step_subscription::{StepFeed, StepSubscription, Visibility};

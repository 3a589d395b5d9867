//! HTTP server of Kvasir: OpenAI- and Anthropic-compatible APIs, streaming, output parsing,
//! structured output, metrics.
//!
//! Layers:
//!
//! - `http`: routes and middleware.
//! - `request`: parses and validates bodies.
//! - `model`: renders prompts and builds constraints.
//! - `grammar`: compiles grammars.
//! - `host`: runs the engine on its thread.
//! - `answer`: parses output (stop sequences, reasoning, tool calls).
//!
//! Must not know kernels, KV cache slots or scheduling policies.
#![forbid(unsafe_code)]

pub mod answer;
mod aside;
mod call;
mod clients;
mod engine_errors;
mod error;
mod folded;
pub mod grammar;
pub mod host;
pub mod http;
mod kept;
mod mail;
pub mod metrics;
pub mod model;
mod raw_arguments;
pub mod report;
pub mod request;
pub mod session;
mod session_recorder;
mod stall_detector;
mod token_buffer;
mod tool_grammars;
mod watch;

pub use call::Call;
pub use error::ApiError;
pub use watch::{Sight, Sights, Watch};

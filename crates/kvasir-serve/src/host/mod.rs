//! The engine on its own thread, and what connects it to HTTP handlers: admission of clients, token
//! streams, sessions that retain K/V, stall detection, step subscriptions.
//!
//! Knows no JSON, text or socket; builds on `context`, `metrics` and `report`.

pub(crate) mod admission;
pub(crate) mod delivery;
pub(crate) mod draft_log;
pub(crate) mod engine_thread;
pub(crate) mod errors;
pub(crate) mod kv_exports;
pub(crate) mod lock;
pub(crate) mod output_buffer;
pub(crate) mod request_output;
pub(crate) mod retained_sessions;
pub(crate) mod stall_detector;
pub(crate) mod step_subscription;

pub use crate::host::admission::AdmissionLimits;
pub use crate::host::engine_thread::{FleetParts, Host, ReplicaObserver, Submission, TokenStream};
pub use crate::host::errors::failure;
pub use crate::host::kv_exports::KvExports;
pub use crate::host::request_output::RequestOutput;

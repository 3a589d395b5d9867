//! Request reporting: access log and OpenTelemetry traces, written on background threads.
//!
//! Queues are bounded. Reports are dropped and counted when a thread falls behind; requests never
//! wait. Builds on `context`; no prompt or answer text is ever reported.

pub(crate) mod event;
pub(crate) mod level;
pub(crate) mod log;
pub(crate) mod otlp;
pub(crate) mod sinks;

pub use crate::report::event::ReportEvent;
pub use crate::report::level::Level;
pub use crate::report::log::{Format, Log};
pub use crate::report::otlp::Collector;
pub use crate::report::sinks::Reports;

//! Request reporting: access log and OpenTelemetry traces, written on background threads.
//!
//! Queues are bounded. Reports are dropped and counted when a thread falls behind; requests never
//! wait.

mod event;
mod log;
mod otlp;
mod sinks;

pub use event::Told;
pub use log::{Format, Level, Log};
pub use otlp::Collector;
pub use sinks::Reports;

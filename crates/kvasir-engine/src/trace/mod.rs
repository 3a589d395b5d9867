//! Step traces: the format of one step's record, and the observer that writes it.
//!
//! Builds on `core` and the observer hook of `engine`.

pub(crate) mod step_source;
pub(crate) mod step_trace;
pub(crate) mod tracer;

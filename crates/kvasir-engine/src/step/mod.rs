//! One step: building it from scheduled rows, committing its results, and what a step costs.
//!
//! Builds on `request`, `scheduler` and `speculation`. Knows no policy.

pub(crate) mod build;
pub(crate) mod commit;
pub(crate) mod cost_meter;

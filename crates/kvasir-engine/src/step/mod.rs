//! One step: building it from scheduled rows, committing its results, speculative drafts, and what
//! a step costs.
//!
//! Builds on `request` and `scheduler`. Knows no policy.

pub(crate) mod build;
pub(crate) mod commit;
pub(crate) mod cost_meter;
pub(crate) mod drafts;

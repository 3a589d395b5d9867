//! Execution: a loaded model, its lowering (fusion), the forward pass, and the executor of steps.
//!
//! - `model.rs`, `lowering.rs`, `costs.rs`: a program with its packed weights.
//! - `run/`: one step through the ops. `executor/`: validates a step, runs it and samples.
//!
//! Builds on all other folders; nothing builds on it.

pub(crate) mod costs;
pub(crate) mod executor;
pub(crate) mod lowering;
pub(crate) mod model;
pub(crate) mod run;

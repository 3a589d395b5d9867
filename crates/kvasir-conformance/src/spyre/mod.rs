//! Replay runners for IBM Spyre's rectangular (static shape) scheduler.
//!
//! The real policy, core and paged cache run; only the sampled tokens are scripted. `tkv` is the
//! padded context length that all rows of a batch share; left padding fills shorter rows.
//!
//! Guarded by `tests/spyre.rs`, which also mutates the expectations.

pub(crate) mod blocks;
pub(crate) mod harness;
pub(crate) mod invariant;
pub(crate) mod padding;
pub(crate) mod rows;
pub(crate) mod runner;
pub(crate) mod scenario;
pub(crate) mod steps;

use crate::outcome::Runner;

/// Case kinds of this family.
pub(crate) const KINDS: &[(&str, Runner)] = &[
    ("spyre.steps", steps::run),
    ("spyre.steps_pausing", steps::run),
    ("spyre.derived_doc", steps::run),
    ("spyre.derived_nopause", steps::run),
    ("spyre.derived_pause", steps::run),
    ("spyre.derived_long_first", steps::run),
    ("spyre.derived_short_first", steps::run),
    ("spyre.tkv_steps", padding::run),
    ("spyre.prefix_caching_runner", runner::run),
    ("spyre.volume_invariant", invariant::run),
];

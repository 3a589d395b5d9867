//! Speculative decoding: what is proposed, how likely it is to be accepted, and how many drafts each
//! row of a step verifies.
//!
//! 1. After each step a [`Drafter`](drafter::Drafter), or the executor's draft model, proposes tokens
//!    with [`Evidence`](crate::request::proposal::Evidence) for each.
//! 2. `acceptance` turns evidence into probabilities, learned from what was verified.
//! 3. Before a step `width` places drafts where the expected tokens per second are highest, by the
//!    measured times of steps (`step_times`), and `depth` says what a draft model reads and proposes.
//!
//! [`SpeculationControl`](control::SpeculationControl) owns all of it.
//!
//! The target model verifies the drafts in one row (`step/commit.rs`), so outputs never depend on
//! any of this. Builds on `request` and `scheduler`.

pub(crate) mod acceptance;
pub(crate) mod control;
pub(crate) mod depth;
pub(crate) mod drafter;
pub(crate) mod lookup;
pub(crate) mod statistics;
pub(crate) mod step_times;
pub(crate) mod width;

//! What the tests of several crates share. No product code depends on it.
//!
//! - `random`: a seeded generator, so that every random test can be repeated.
//! - `paths`: the repository's test models, and scratch folders.
//! - `schemas`: random JSON schemas as clients send them, and a validator for answers.
//! - `complete` (feature `engine`): an engine's answers to a list of requests.
//! - `engines` (feature `engine`): random caches, limits and policies.
//! - `encoders` (feature `encoders`): steps of whole texts, and the recorded vectors of encoders.
//! - `ranks` (feature `ranks`): collectives of ranks that are threads of one process.
//! - `steps` (feature `steps`): steps of several sequences that compute the logits of every token.
//! - `windows` (feature `steps`): random operations on caches with and without window groups.
//! - `checkpoints` (feature `cpu`): the test models on the CPU backend, in each precision.

#![allow(clippy::unwrap_used, clippy::panic)] // tests call it
#![forbid(unsafe_code)]

#[cfg(feature = "cpu")]
pub mod checkpoints;
#[cfg(feature = "engine")]
pub mod complete;
#[cfg(feature = "encoders")]
pub mod encoders;
#[cfg(feature = "engine")]
pub mod engines;
pub mod paths;
pub mod random;
#[cfg(feature = "ranks")]
pub mod ranks;
pub mod schemas;
#[cfg(feature = "steps")]
pub mod steps;
#[cfg(feature = "steps")]
pub mod windows;

pub use random::{Random, env_number, rounds};

//! Tensor parallelism: the ranks of one engine, one process each.
//!
//! ```text
//!               rank 0: the engine's process                rank 1 … M-1: `kvasir rank`
//! Engine ──► RankExecutor ──► StepBroadcast ──ring──► RankProcess::follow ──► executor of a shard
//!              └─► executor of a shard ◄────── collectives ───────────────────┘
//! ```
//!
//! The diagram shows `--rank-control steps`: rank 0 schedules and broadcasts each step. With
//! `requests` every rank runs its own engine on the logged inputs of rank 0 ([`command_log`]), and
//! the ranks compare a hash of each step ([`step_hashes`]). Only rank 0 samples in both modes.
//!
//! All ranks map one anonymous memory file ([`memory`]). A waiting rank polls before it sleeps, so
//! a step reaches another rank in microseconds (`kvasir bench broadcast`).
//!
//! - [`endpoint`]: publishing counters and waiting for them; the ordering argument.
//! - [`broadcast_ring`]: ring buffer of records from rank 0 to all other ranks.
//! - [`contributions`]: all-reduce and all-gather, in rank order.
//! - [`group`]: starts and supervises the processes. A rank that ends is *lost*: every wait in the
//!   group fails, which ends the engine. The front restarts the worker and resumes its requests.
//!
//! `loom/` explores the interleavings of `endpoint`, `broadcast_ring` and `contributions`.

mod affinity;
#[allow(unsafe_code)]
mod broadcast_ring;
mod broadcast_times;
mod command_log;
#[allow(unsafe_code)]
mod contributions;
pub(crate) mod endpoint;
mod follow;
mod group;
pub(crate) mod layout;
mod member;
#[allow(unsafe_code)]
pub(crate) mod memory;
mod packed_bytes;
mod rank_message;
pub(crate) mod ring_error;
mod step_broadcast;
mod step_hashes;
mod step_words;
pub(crate) mod sync;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

pub use affinity::Affinity;
pub use broadcast_times::{BroadcastBench, BroadcastError};
pub use command_log::CommandLog;
pub use follow::{RankConfig, RankError, RankProcess};
pub use group::{GroupConfig, GroupError, OnRankLost, RankCommand, RankGroup};
pub use member::Member;
pub use rank_message::PoolSizes;
pub use step_broadcast::StepBroadcast;
pub use step_hashes::StepHashes;

//! Tensor parallelism: the ranks of one engine, a process each.
//!
//! ```text
//!               rank 0: the engine's process           rank 1 … M-1: `kvasir rank`
//! Engine ──► Ranked ──► StepBroadcast ────ring───► follow_steps ──► executor of a part
//!              └─► executor of a part ◄──── collectives ────────────┘
//! ```
//!
//! That is the control `steps`: rank 0 schedules, and the others compute its steps. With `requests` each
//! rank has an engine that schedules for itself, on what rank 0 receives ([`command_log`]); a hash of each
//! step is compared ([`step_hashes`]). Only rank 0 samples, either way. All memory that they share is one
//! anonymous file ([`memory`]). Nothing is copied through the kernel, and a rank that waits polls before
//! it sleeps, so a step reaches another rank in microseconds.
//!
//! - [`endpoint`]: counters in shared memory, waiting, and the ordering argument.
//! - [`broadcast_ring`]: a ring of records from rank 0 to all others: binds, releases, steps.
//! - [`contributions`]: sums and concatenations, in rank order.
//! - [`group`]: starts the processes and watches them. A rank that ends is *lost*: every wait in the
//!   group ends with an error, which ends the engine. The front then continues its requests elsewhere.
//!
//! `loom/` explores the interleavings of `endpoint`, `broadcast_ring` and `contributions`.

mod affinity;
#[allow(unsafe_code)]
mod broadcast_ring;
mod broadcast_times;
mod command_log;
#[allow(unsafe_code)]
mod contributions;
mod endpoint;
mod follow;
mod group;
mod layout;
mod member;
#[allow(unsafe_code)]
mod memory;
mod packed_bytes;
mod rank_message;
mod ring_error;
mod step_broadcast;
mod step_hashes;
mod step_words;
mod sync;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

pub use affinity::Affinity;
pub use broadcast_times::{BroadcastBench, BroadcastError};
pub use command_log::CommandLog;
pub use follow::{RankConfig, RankError, RankProcess};
pub use group::{GroupConfig, GroupError, OnRankLost, RankCommand, RankGroup};
pub use member::Member;
pub use step_broadcast::StepBroadcast;
pub use step_hashes::StepHashes;

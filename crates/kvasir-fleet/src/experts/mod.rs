//! Expert parallelism: each replica holds a part of the experts, and the replicas run in lockstep.
//!
//! ```text
//! worker 0:  Engine ─► RankExecutor ─ join ─► executor ─ exchange ─┐
//! worker 1:  Engine ─► RankExecutor ─ join ─► executor ─ exchange ─┴─► shared memory (memfd)
//! ```
//!
//! - [`layout`], [`member`]: the shared memory of the group, and one replica's access to it.
//! - [`lockstep`]: joins a step: an all-gather of the replicas' token counts and states.
//! - [`exchange`], [`received_rows`]: sends rows to the replicas of their experts, and returns the
//!   outputs.
//! - [`watcher`]: wakes an idle engine when another replica begins a step.
//!
//! The front creates one memory file per *generation* of the group. When the process of a replica
//! ends, the front kills the others and starts the next generation with a new file. A replica that
//! waits for another therefore does not need to detect its loss.
//!
//! Guarded by `tests.rs` and `kvasir-cli/tests/serve/experts.rs`.

#[allow(unsafe_code)]
mod exchange;
mod layout;
#[allow(unsafe_code)]
mod lockstep;
mod member;
mod received_rows;
#[cfg(test)]
mod tests;
mod watcher;

pub(crate) use member::create_experts_memory;
pub use member::{ExpertGroupConfig, ExpertGroupMember};
pub(crate) use watcher::LockstepInbox;

//! Expert parallelism: replicas that hold a part of the experts each, and run their steps together.
//!
//! ```text
//! worker 0:  Engine ─► RankExecutor ─ join ─► executor ─ exchange ─┐
//! worker 1:  Engine ─► RankExecutor ─ join ─► executor ─ exchange ─┴─► shared memory (memfd)
//! ```
//!
//! - [`member`]: one replica's access to the shared memory of the group.
//! - [`lockstep`]: joins a step: an all-gather of the replicas' token counts and states.
//! - [`exchange`]: sends rows to the replicas of their experts, and returns the outputs.
//! - [`watcher`]: wakes an idle engine when another replica begins a step.
//!
//! The front creates one memory file per *generation* of the group. When the process of a replica
//! ends, the front kills the others, and starts the next generation with a new file. So no wait
//! needs to detect the loss of a replica.

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

pub(crate) use member::create_memory;
pub use member::{ReplicaConfig, ReplicaMember};
pub(crate) use watcher::LockstepInbox;

//! Memory: mapped buffers, lists aligned to cache lines, shared memory, KV cache pools, pools of
//! recurrent states, and the frozen pools of shared prefixes.
//!
//! Knows no kernel; builds on `isa`.

pub(crate) mod aligned;
pub(crate) mod buffer;
pub(crate) mod frozen_pool;
pub(crate) mod kv_pool;
pub(crate) mod memfd;
pub(crate) mod state_pool;

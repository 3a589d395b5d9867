//! Memory: mapped buffers, lists aligned to cache lines, shared memory, the KV cache pools, the pool
//! of recurrent states, and both of a shared prefix.
//!
//! Knows no kernel; builds on `isa`.

pub(crate) mod aligned;
pub(crate) mod buffer;
pub(crate) mod frozen_pool;
pub(crate) mod kv_pool;
pub(crate) mod memfd;
pub(crate) mod state_pool;

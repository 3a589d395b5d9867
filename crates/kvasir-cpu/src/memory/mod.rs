//! Memory: mapped buffers, lists aligned to cache lines, shared memory, the KV cache pools, and the
//! pool of recurrent states.
//!
//! Knows no kernel; builds on `isa`.

pub(crate) mod aligned;
pub(crate) mod buffer;
pub(crate) mod kv_pool;
pub(crate) mod memfd;
pub(crate) mod state_pool;

//! Memory: mapped buffers, lists aligned to cache lines, shared memory, and the KV cache pools.
//!
//! Knows no kernel; builds on `isa`.

pub(crate) mod aligned;
pub(crate) mod buffer;
pub(crate) mod kv_pool;
pub(crate) mod memfd;

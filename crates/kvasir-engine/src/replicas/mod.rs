//! Data-parallel replicas: the router over them, the coalescing of their prefills, and their status.
//!
//! Pure logic over counters; knows no other folder.

pub(crate) mod coalescer;
pub(crate) mod router;
pub(crate) mod status;

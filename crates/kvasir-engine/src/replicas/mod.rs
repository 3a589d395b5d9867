//! Data-parallel replicas: the router over them and the coalescing of their prefills.
//!
//! Pure logic over counters; knows no other folder.

pub(crate) mod coalescer;
pub(crate) mod router;

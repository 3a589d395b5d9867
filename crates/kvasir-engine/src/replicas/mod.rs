//! Data-parallel replicas: the router over them, the coalescing of their prefills, and their status.
//!
//! - `route`: the policies by name, and what the router must know of a request.
//! - `load_order`, `prefix_map`, `session_map`: which replica has the least load, which replicas hold
//!   a block, which one serves a session.
//! - `router`: picks a replica per request.
//! - `coalescer`: lets all replicas run their prefills in the same step.
//! - `status`: what an operator sees of replicas that are processes.
//!
//! Pure logic over counters and hashes; knows no other folder but the ids of `request`.

pub(crate) mod coalescer;
pub(crate) mod load_order;
pub(crate) mod prefix_map;
pub(crate) mod route;
pub(crate) mod router;
pub(crate) mod session_map;
pub(crate) mod status;

#[cfg(test)]
mod tests;

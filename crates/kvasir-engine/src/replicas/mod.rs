//! Data-parallel replicas: routing of requests, and replica status.
//!
//! - `route`: the policies by name, and the router's view of a request.
//! - `load_order`, `prefix_map`, `session_map`: indexes of replicas by load, by cached block and by
//!   session.
//! - `router`: picks a replica per request. `role`, `role_router`: disaggregated prefill.
//! - `rank_load`: the load of one replica, for external routers.
//! - `status`: the operator's interface to replicas in separate processes.
//!
//! Pure logic over counters and hashes. Depends on the ids of `request` and the step stream of
//! `trace`, and on no other folder.

pub(crate) mod load_order;
pub(crate) mod prefix_map;
pub(crate) mod rank_load;
pub(crate) mod role;
pub(crate) mod role_router;
pub(crate) mod route;
pub(crate) mod router;
pub(crate) mod session_map;
pub(crate) mod status;

#[cfg(test)]
mod tests;

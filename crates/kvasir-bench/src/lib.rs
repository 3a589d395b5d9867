//! Workloads, benchmarks, simulation runs with their reports, and an HTTP load generator.
//!
//! The crate measures and checks the engine; serving does not depend on it.
//!
//! - `workload`: arrival processes and prompts (Poisson, agents, chat, offline, scenario files).
//! - `sim`: runs the scheduler over a cost model instead of a device.
//! - `offline`, `bench`, `load`: throughput in process, kernel speed against the roofline, and an
//!   HTTP load generator.
//! - `trace`: the step trace file format.

#![forbid(unsafe_code)]

pub mod bench;
pub mod load;
pub mod offline;
pub mod shapes;
pub mod sim;
mod steal_time;
pub mod trace;
pub mod workload;

//! Recorded cases, workloads and reports: everything that measures the engine and nothing that it needs to serve.
#![forbid(unsafe_code)]

pub mod bench;
pub mod load;
pub mod offline;
pub mod replay;
mod shapes;
pub mod sim;
mod stolen;
pub mod trace;
pub mod workload;

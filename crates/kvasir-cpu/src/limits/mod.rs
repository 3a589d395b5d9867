//! Machine limits of the roofline model, measured by microbenchmarks.
//!
//! Stands beside the kernels: knows none of them, and nothing builds on it but reports.

#[cfg(target_arch = "aarch64")]
mod arm;
pub(crate) mod machine_limits;
#[cfg(target_arch = "x86_64")]
mod x86;

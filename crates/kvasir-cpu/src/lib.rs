//! The CPU backend: kernels, pools and the executor.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod buffer;
mod dense;
mod level;
mod machine;
mod matmul;
mod pool;
mod quant;
mod team;

pub use machine::Level;
pub use pool::{KvType, Pool};
pub use team::Team;

//! The CPU backend: SIMD kernels (GEMM, GEMV, attention), the KV cache pools, weight packing, the
//! thread pool, and the executor that runs steps of a program.
//!
//! The layers, top down: `executor` validates a step and samples; `run` executes the ops;
//! `attention`, `dense`, `quant` and `mixture` are the kernels. `pool` stores K and V; `panels`
//! stores weights; `machine` and `level` choose the instruction set; `threads` is the thread pool.
//!
//! Batch invariance: a token's results are bit-identical whatever the batch composition, the
//! chunking, the KV layout and the number of threads.

// Kernels index several arrays in lockstep, which reads better than a chain of zips.
#![allow(clippy::needless_range_loop)]
// Parts of the shared code are used only by AMX and AVX-512 kernels.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports, unused_mut, unused_variables))]

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod buffer;
mod chains;
mod checkpoint;
mod costs;
mod dense;
mod executor;
mod form;
mod halves;
mod level;
mod lines;
mod lowering;
mod machine;
mod machine_limits;
mod matmul;
mod mixture;
mod model;
mod packer;
mod panels;
mod parts;
mod pool;
mod precision;
mod prefetch;
mod prepared;
mod quant;
mod random_weights;
mod rows;
mod run;
mod select;
mod singles;
mod source;
mod threads;
mod tile;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod weights;

pub use executor::{CpuExecutor, Limits};
pub use form::Form;
pub use machine::Level;
pub use machine_limits::{PeakMeter, Peaks};
pub use model::CpuModel;
pub use pool::{KvType, Pool};
pub use precision::Precision;
pub use random_weights::RandomWeights;
pub use source::{NibbleRow, Nibbles, Scaled, Stored, WeightSource};
pub use threads::pool::ThreadPool;

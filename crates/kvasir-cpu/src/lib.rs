//! The CPU backend: SIMD kernels (GEMM, GEMV, attention), the KV cache pools, weight packing, the
//! thread pool, and the executor that runs steps of a program.
//!
//! The folders, in reading order; each builds only on those before it:
//!
//! 1. `isa`: instruction sets, AMX tiles, vectors. `rowwise`: norms, gates, rotary embeddings.
//! 2. `threads`: the pool. `memory`: buffers, KV and state pools. `prefetch`: hints and their
//!    tuning.
//! 3. `weights`: sources, formats, packed panels.
//! 4. `kernels`: which kernel runs. `gemm`: matrix products, in integers, bf16 and f32.
//! 5. `attention`: over the KV pools. `recurrent`: over the state pool. `ops`: mixture of experts,
//!    indexer, hyper-connections.
//! 6. `exec`: model, forward pass, executor. `limits`, beside: the roofline of the machine.
//!
//! Batch invariance: a token's results are bit-identical whatever the batch composition, the
//! chunking, the KV layout and the number of threads.

// Kernels index several arrays in lockstep, which reads better than a chain of zips.
#![allow(clippy::needless_range_loop)]
// Parts of the shared code are used only by AMX and AVX-512 kernels.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports, unused_mut, unused_variables))]

mod attention;
mod exec;
mod gemm;
mod isa;
mod kernels;
mod limits;
mod memory;
mod ops;
mod prefetch;
mod recurrent;
mod rowwise;
mod threads;
mod weights;

pub use exec::executor::draft::Drafting;
pub use exec::executor::{CpuExecutor, Limits};
pub use exec::model::{CpuModel, LoadOptions};
pub use isa::features::Isa;
pub use limits::machine_limits::{LimitsMeter, MachineLimits};
pub use memory::frozen_pool::FrozenPool;
pub use memory::kv_pool::Pool;
pub use memory::kv_pool::kv_type::KvType;
pub use threads::pool::ThreadPool;
pub use weights::linear::Form;
pub use weights::packed_file::PackedFile;
pub use weights::precision::Precision;
pub use weights::random::RandomWeights;
pub use weights::source::{NibbleRow, Nibbles, Scaled, Stored, WeightSource};

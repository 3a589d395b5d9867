//! The CPU backend: kernels, pools and the executor.

// Kernels walk several arrays in lockstep; an index says so more plainly than a chain of zips.
#![allow(clippy::needless_range_loop)]
// Some parts of what is shared serve only the tile unit and the widest vectors.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports, unused_mut, unused_variables))]

#[cfg(target_arch = "x86_64")]
mod amx;
mod ask;
#[cfg(target_arch = "x86_64")]
mod asking;
mod attention;
mod buffer;
mod chains;
mod checkpoint;
mod costs;
mod dense;
mod executor;
mod first;
mod form;
mod halves;
mod level;
mod lines;
mod lowering;
mod machine;
mod matmul;
mod meanwhile;
mod mixture;
mod model;
mod packer;
mod panels;
mod parts;
mod peaks;
mod pool;
mod precision;
mod prepared;
mod quant;
mod random_weights;
mod rows;
mod run;
mod select;
mod singles;
mod source;
mod team;
mod tile;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod weights;

pub use executor::{CpuExecutor, Limits};
pub use form::Form;
pub use machine::Level;
pub use model::CpuModel;
pub use peaks::{PeakMeter, Peaks};
pub use pool::{KvType, Pool};
pub use precision::Precision;
pub use random_weights::RandomWeights;
pub use source::{NibbleRow, Nibbles, Scaled, Stored, WeightSource};
pub use team::Team;

//! Weights: sources (checkpoints, random), formats, and matrices packed into panels of 16 outputs.
//!
//! - `source.rs`, `checkpoint.rs`, `random.rs`: where weights come from. `precision.rs`: the
//!   arithmetic that they need.
//! - `packed_file.rs`: packed weights in shared memory. `shared_panels.rs`: the panels of one
//!   matrix in it.
//! - `panels.rs`: panels of any format, read in place until packed. `quant/`, `bf16.rs`, `f32/`:
//!   the formats.
//! - `packer.rs`: picks a format per matrix. `linear.rs`: the packed matrices of ops.
//!
//! Knows no activation and no kernel; builds on `isa`, `threads`, `memory` and `prefetch`.

pub(crate) mod bf16;
pub(crate) mod checkpoint;
pub(crate) mod f32;
pub(crate) mod linear;
pub(crate) mod packed_file;
pub(crate) mod packer;
pub(crate) mod panels;
pub(crate) mod precision;
pub(crate) mod quant;
pub(crate) mod random;
pub(crate) mod shared_panels;
pub(crate) mod source;

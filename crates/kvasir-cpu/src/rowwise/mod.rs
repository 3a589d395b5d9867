//! Row-wise f32 kernels: norms, activation gates, residual addition and rotary embeddings.
//!
//! Every function works on one row with a fixed order of operations, so results depend neither on
//! the batch nor on the instruction set. Knows no tensor, op or thread; builds on `isa`.

pub(crate) mod gate;
pub(crate) mod norm;
pub(crate) mod rotary;

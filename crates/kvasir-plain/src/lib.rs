//! The reference backend: naive f32 kernels on one thread. The oracle that every other backend is
//! tested against.
//!
//! [`PlainModel::load`] dequantizes a checkpoint's weights to f32; a [`PlainExecutor`] runs steps
//! over its own KV pool and state pool. Attention materializes scores and a mask per query. The
//! mask is built from positions alone, so that a cache's plan is checked instead of trusted.
//! Explicit masks of a plan narrow it further.
//!
//! Invariant: it stays simple. No threads, no fused ops, no online softmax, no path that only some
//! plans take.
//!
//! `recurrent_rows.rs` reads and writes recurrent states according to the plan's state section.
//!
//! Guarded by `tests/checkpoints.rs` (recorded logits) and `tests/plans.rs` (every cache gives the
//! same bits).

#![forbid(unsafe_code)]

mod attention;
mod compressed;
mod elementwise;
mod encoder;
mod executor;
mod expert_parallel;
mod frozen_pool;
mod indexer;
mod mask;
mod math;
mod mixture;
mod model;
mod ngram;
mod pool;
mod recurrent;
mod recurrent_rows;
mod rowwise;
mod run;
mod state_pool;
mod streams;
mod weights;

pub use crate::executor::draft::{DraftSource, Drafting};
pub use crate::executor::{Limits, PlainExecutor};
pub use crate::frozen_pool::FrozenPool;
pub use crate::model::{Pass, PlainModel};

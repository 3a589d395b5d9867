//! The interface between the engine and a backend: [`Batch`] plus [`Plan`](kvasir_kv::Plan) in,
//! [`Output`] out.
//!
//! - `batch.rs`: the rows of one step (continuous batching: prefill, decode and draft tokens).
//! - `executor.rs`: the [`Executor`] trait with asynchronous `submit` and `wait`, and [`Step`].
//! - `sampler_row.rs`: per-sequence sampler state, and verification of speculative drafts.
//! - `ranks.rs`: all-reduce and all-gather for tensor parallelism.
//!
//! Plain data with opaque ids. No scheduling decision is taken here, and nothing here knows a
//! request, a policy or a kernel.

#![forbid(unsafe_code)]

mod batch;
mod executor;
mod output;
mod ran;
mod ranks;
mod sampler_row;

pub use crate::batch::{Batch, BatchRow, Drafts, IN_FLIGHT, Phase, PoolRow, StepKind};
pub use crate::executor::{Abilities, Executor, Refused, SequenceSpec, Step, StepError};
pub use crate::output::{Drawn, Output, OutputRow, TokenLogprobs};
pub use crate::ran::Ran;
pub use crate::ranks::{Ranks, ThreadRank};
pub use crate::sampler_row::SamplerRow;

//! What the engine and a backend say to each other: a [`Batch`] and a [`Plan`](kvasir_kv::Plan) go in, an [`Output`] comes out.
//!
//! Plain data with opaque ids. No decision is taken here.
#![forbid(unsafe_code)]

mod batch;
mod executor;
mod output;
mod ran;
mod ranks;
mod sampler_row;

pub use batch::{Batch, BatchRow, Drafts, IN_FLIGHT, Phase, PoolRow, StepKind};
pub use executor::{Abilities, Executor, Refused, SequenceSpec, Step, StepError};
pub use output::{Output, OutputRow, TokenLogprobs};
pub use ran::Ran;
pub use ranks::{Ranks, ThreadRank};
pub use sampler_row::{Drawn, SamplerRow};

//! Kvasir as a library: LLM inference in the caller's process, with one copy of the weights for any
//! number of sessions.
//!
//! ```
//! use kvasir::{Kvasir, Options, Params};
//! # fn main() -> Result<(), kvasir::Error> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models/qwen3");
//! let mut kvasir = Kvasir::load(path, Options::default())?;
//! let params = Params { max_tokens: 8, ..Params::default() };
//! let answer = kvasir.generate([5, 6, 7], &params)?;
//! println!("{:?} {:?}", answer.ids, answer.text);
//! # Ok(()) }
//! ```
//!
//! - [`Kvasir`] generates answers: one, a batch, as a stream, or step by step.
//! - [`Session`] retains conversations with their K/V: append, fork, rewind, keep. Sessions with
//!   different caches, K/V types and sizes share the weights.
//! - [`SharedPrefix`] is a prefix that is prefilled once and read by any number of sessions.
//! - [`Opened`] and [`Loaded`] are the parts from which callers build engines with their own
//!   policy, cache and limits.
//!
//! Scheduling runs in the caller's thread, on demand: no server, no async runtime, no background
//! scheduler. The CPU backend runs its kernels on a thread pool. This crate assembles parts; all
//! decisions are in the [`Core`](kvasir_engine::Core).
#![forbid(unsafe_code)]

mod answer;
mod backend;
mod built_in;
mod cache_options;
mod engine;
mod error;
mod feed;
mod front;
mod generation;
mod hub;
mod inspection;
mod logits;
mod model;
mod opened;
mod prompt;
mod runner;
mod session;
mod shared_prefix;
mod stream;

pub use answer::{Answer, Piece};
pub use backend::{AnyExecutor, AnyPending, AnyPool, BackendKind};
pub use built_in::NAME as BUILT_IN;
pub use cache_options::CacheOptions;
pub use error::Error;
pub use front::{Kvasir, Options};
pub use hub::HubName;
pub use inspection::{Inspection, KvFacts, MemoryPlan};
pub use kvasir_cpu::{KvType, Precision};
pub use kvasir_engine::{Finish, Params, RequestId};
pub use kvasir_kv::{CacheKind, Token};
pub use kvasir_sample::Sampling;
pub use model::Model;
pub use opened::{Loaded, Opened};
pub use prompt::Prompt;
pub use session::{Branch, Session};
pub use shared_prefix::{PrefixOptions, SharedPrefix};
pub use stream::Stream;

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
//! - [`EngineConfig`] sets cache, policy, queue order and limits of a session or of [`Kvasir`] itself,
//!   as part of its [`CacheOptions`].
//! - [`OpenedModel`] and [`LoadedModel`] are the parts from which callers build engines with their own
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
mod draft_model;
mod draft_trace;
mod engine;
mod error;
mod generation;
mod hub;
mod inspection;
mod kvasir;
mod load;
mod logits;
mod memory;
mod model;
mod model_card;
mod model_files;
mod opened;
mod prefill;
mod prefill_progress;
mod prompt;
mod runner;
mod session;
mod shared_prefix;
mod speculation;
mod stream;

pub use crate::answer::{Answer, Piece};
pub use crate::backend::{AnyExecutor, AnyPending, AnyPool, BackendKind};
pub use crate::built_in::NAME as BUILT_IN;
pub use crate::cache_options::CacheOptions;
pub use crate::draft_trace::{DraftRound, DraftTrace};
pub use crate::engine::{DEFAULT_SLOTS, warm_up};
pub use crate::error::Error;
pub use crate::hub::HubName;
pub use crate::hub::cached::CachedModel;
pub use crate::hub::short_names::ShortNames;
pub use crate::inspection::{Inspection, KvFacts, MemoryPlan, TextSupport};
pub use crate::kvasir::{Kvasir, Options};
pub use crate::load::LoadedModel;
pub use crate::memory::{available_memory, available_memory_in};
pub use crate::model::Model;
pub use crate::model_card::ModelCard;
pub use crate::model_files::ModelFiles;
pub use crate::opened::OpenedModel;
pub use crate::prefill_progress::{PrefillProgress, PrefillState};
pub use crate::prompt::Prompt;
pub use crate::session::{Branch, Session};
pub use crate::shared_prefix::{PrefixOptions, SharedPrefix};
pub use crate::speculation::method::DraftMethod;
pub use crate::speculation::parameters::DraftParameters;
pub use crate::speculation::{DRAFT_METHODS, Speculation};
pub use crate::stream::Stream;
pub use kvasir_cpu::{KvType, Precision};
pub use kvasir_draft::TreeShape;
pub use kvasir_engine::{
    Argument, ConfigError, DraftWidth, EngineConfig, Facts, Finish, Order, Params, PolicyConfig, Refusal,
    RequestId, Resolved,
};
pub use kvasir_kv::{CacheKind, Token};
pub use kvasir_sample::{Acceptance, Sampling};

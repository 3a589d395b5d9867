//! One loaded model, any number of conversations: the library's front door.
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
//! - [`Kvasir`] answers prompts: one, many side by side, as a stream, or step by step.
//! - [`Session`] keeps conversations with what has been computed for them: append, fork, rewind, keep. Sessions of different
//!   caches, K/V types and sizes share one copy of the weights.
//! - [`SharedPrefix`] is a beginning that is computed once and read by any number of sessions.
//! - [`Opened`] and [`Loaded`] are the parts: an engine is put together from policies, caches and limits of the caller's.
//!
//! Nothing runs by itself: there is no server, no runtime and no thread that decides. It puts together and decides nothing: policy,
//! cache and limits come in a [`Core`](kvasir_engine::Core).
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

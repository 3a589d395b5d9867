//! Kvasir as a library: LLM inference in the caller's process, with one copy of the weights for any
//! number of sessions.
//!
//! ```
//! use kvasir::{Kvasir, Message, Options};
//! # fn main() -> Result<(), kvasir::Error> {
//! let mut kvasir = Kvasir::built_in(Options::default())?;
//! let answer = kvasir.chat(&[Message::user("What is 7 + 8?")]).answer()?;
//! assert_eq!(answer.content, "7 + 8 = 15");
//! # Ok(()) }
//! ```
//!
//! [`Kvasir::load`] takes a GGUF file, a directory in the Hugging Face layout, or the name of a
//! model in the local cache. With the feature `hub`, it fetches models by name.
//!
//! | task | call |
//! |---|---|
//! | chat: messages, tools, reasoning | [`Kvasir::chat`], with [`Chat::tools`]; [`ChatAnswer::message`] goes into the next turn |
//! | complete a text or token ids | [`Kvasir::generate`], [`Kvasir::generate_many`], [`Kvasir::stream`] |
//! | JSON Schema, regular expression, grammar, choice | [`Chat::format`], [`Model::constraint`] |
//! | end at a stop text | [`Chat::stop`], [`Stream::until`] |
//! | sample with the model's recommended parameters | [`Model::default_params`], the default of chats |
//! | drive steps yourself | [`Kvasir::add_request`], [`Kvasir::step`] |
//! | threads and async tasks of any executor | [`Kvasir::into_service`]: a [`Service`] and its owned streams |
//! | branch or rewind a conversation | [`Session`]: conversations with their K/V; sessions share the weights |
//! | prefill a prefix once | [`SharedPrefix`], read by any number of sessions |
//! | show progress | [`OpenedModel::watch_load`], [`Kvasir::watch_prefill`] |
//! | choose cache, policy, limits | [`CacheOptions`] with an [`EngineConfig`] |
//! | decode speculatively | [`OpenedModel::speculate`] |
//!
//! [`OpenedModel`] and [`LoadedModel`] are the parts from which callers build engines with their
//! own policy, cache and limits.
//!
//! Scheduling runs in the caller's thread, on demand: no server, no async runtime, no background
//! scheduler unless a [`Service`] is started. The CPU backend runs its kernels on a thread pool.
//! This crate assembles parts; all decisions are in the [`Core`](kvasir_engine::Core).

#![forbid(unsafe_code)]

mod answer;
mod backend;
mod built_in;
mod cache_options;
mod chat;
mod draft_model;
mod draft_trace;
mod engine;
mod error;
mod generation;
mod hub;
mod inspection;
mod kvasir;
mod layer_groups;
mod load;
mod logits;
mod memory;
mod model;
mod model_card;
mod model_files;
mod opened;
mod owned_stream;
mod prefill;
mod prefill_progress;
mod prompt;
mod runner;
mod service;
mod session;
mod shared_prefix;
mod speculation;
mod stream;

pub use crate::answer::{Answer, Piece};
pub use crate::backend::{AnyExecutor, AnyPending, AnyPool, BackendKind};
pub use crate::built_in::NAME as BUILT_IN;
pub use crate::cache_options::CacheOptions;
pub use crate::chat::Chat;
pub use crate::chat::answer::{ChatAnswer, ToolCall};
pub use crate::chat::stream::ChatStream;
pub use crate::draft_trace::{DraftRound, DraftTrace};
pub use crate::engine::{DEFAULT_SLOTS, ENCODER_CANNOT_GENERATE, warm_up};
pub use crate::error::Error;
pub use crate::hub::cached::CachedModel;
pub use crate::hub::short_names::ShortNames;
pub use crate::hub::{FetchProgress, HubName};
pub use crate::inspection::{Inspection, KvFacts, MemoryPlan, TextSupport};
pub use crate::kvasir::{Kvasir, Options};
pub use crate::load::{ExpertReplica, LoadedModel, PackedWeights, Rank};
pub use crate::memory::{available_memory, available_memory_in};
pub use crate::model::Model;
pub use crate::model_card::ModelCard;
pub use crate::model_files::ModelFiles;
pub use crate::opened::OpenedModel;
pub use crate::owned_stream::OwnedStream;
pub use crate::prefill_progress::{PrefillProgress, PrefillState};
pub use crate::prompt::Prompt;
pub use crate::service::Service;
pub use crate::session::{Branch, Session};
pub use crate::shared_prefix::{PrefixOptions, SharedPrefix};
pub use crate::speculation::method::DraftMethod;
pub use crate::speculation::parameters::DraftParameters;
pub use crate::speculation::{DRAFT_METHODS, Speculation};
pub use crate::stream::{PieceSource, Stream};
pub use kvasir_chat::{
    ChatError, ChatModel, Content, Delta, Message, Role, Shape, Tool, ToolChoice, dialect::ReasoningDialect,
    dialect::ToolDialect,
};
pub use kvasir_cpu::{KvType, PackedFile, Precision};
pub use kvasir_draft::TreeShape;
pub use kvasir_engine::{
    Argument, ConfigError, DraftWidth, EngineConfig, Facts, Finish, GroupFacts, JoinReason, MemoryDivision,
    Order, Params, PolicyConfig, PrefixMatch, Refusal, RequestId, Resolved, StateDivision,
};
pub use kvasir_kv::{CacheEnd, CacheKind, Token};
pub use kvasir_sample::{
    Acceptance, Allowed, Breakers, Constrained, Constraint, Dry, Follower, Mirostat, MirostatVersion,
    Sampler, SamplerChain, Sampling,
};

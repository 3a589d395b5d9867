//! Data parallelism on one machine: each engine runs in its own process.
//!
//! - [`Fleet`] is the front process: it starts the workers, routes requests to them, and delivers
//!   their results. It serves an inbox as an engine does ([`kvasir_engine::Serving`]).
//! - [`run_worker`] runs a worker: an engine that receives its requests from a socket.
//!
//! ```text
//!            front                                  worker (one per replica)
//! inbox ──► Fleet ──ROUTER──── requests ────DEALER──► I/O thread ──► engine thread
//! outbox ◄──       ◄─PULL───── results ─────PUSH────              ◄──
//! ```
//!
//! A request whose worker dies continues in another one ([`kvasir_engine::Resumption`]); the client
//! receives the same tokens as without the loss.
//!
//! [`KvPublisher`] publishes the KV events of engines, in this process or in workers, over ZMQ in vLLM's
//! wire format.
//!
//! [`RankGroup`] and [`RankProcess`] run the tensor-parallel ranks of one engine, one process each,
//! which communicate over shared memory.
//!
//! [`ExpertGroupMember`] joins the steps of an expert-parallel group, and exchanges rows between
//! its replicas.
//!
//! [`TokenizerPool`] supervises tokenizer processes ([`run_tokenizer`]), which tokenize prompts and
//! detokenize answers.
//!
//! [`LoadPublisher`] publishes the load of each engine, with a heartbeat, in SGLang's wire format.
//!
//! Messages are typed msgpack ([`message`]). They do not leave the host: the Unix sockets are in a
//! directory that only this user can enter ([`directory`]).

#![deny(unsafe_code)]

mod constraint_builds;
mod directory;
mod error;
mod experts;
mod fleet;
mod front;
mod kv_connector;
mod kv_publisher;
mod kv_replay;
mod kv_wire;
mod load_publisher;
mod message;
mod monotonic;
mod open_request;
mod order;
mod oversized;
mod parent_death_signal;
mod publisher_thread;
mod rank_port;
mod ranks;
mod replica;
mod segment;
mod session_homes;
mod status;
mod step_watch;
mod tokenizers;
mod transport;
mod watchdog;
mod worker;
mod workers;

pub use crate::constraint_builds::BuildConstraint;
pub use crate::error::FleetError;
pub use crate::experts::{ExpertGroupConfig, ExpertGroupMember};
pub use crate::fleet::{Fleet, FleetConfig};
pub use crate::kv_publisher::{KvPublisher, KvPublisherConfig, KvPublisherError, PublishedServing};
pub use crate::load_publisher::{BoundLoadPublisher, LoadPublisher, LoadPublisherError, SampleLoads};
pub use crate::message::{Facts, Identity};
pub use crate::parent_death_signal::set_parent_death_signal;
pub use crate::ranks::{
    Affinity, BroadcastBench, BroadcastError, CommandLog, GroupConfig, GroupError, Member, OnRankLost,
    PoolSizes, RankCommand, RankConfig, RankError, RankGroup, RankProcess, StepBroadcast, StepHashes,
};
pub use crate::replica::{WorkerArguments, WorkerCommand, WorkerStart};
pub use crate::status::FleetHandle;
pub use crate::step_watch::SubscribeSteps;
pub use crate::tokenizers::{
    TokenizerArguments, TokenizerClient, TokenizerConfig, TokenizerError, TokenizerPool,
    TokenizerProcessConfig, TokenizerStart, run_tokenizer,
};
pub use crate::worker::{ReadCounters, WorkerConfig, WorkerError, run_worker};
pub use crate::workers::{OnCounters, OnLog};

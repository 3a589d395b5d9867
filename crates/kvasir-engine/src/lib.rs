//! The scheduler and step loop of the engine: continuous batching, chunked prefill, prefix-cache
//! hits, preemption, speculative decoding and request lifecycle.
//!
//! - `Core` decides: it owns a scheduling policy, the KV cache bookkeeping, the waiting queue and
//!   the table of sequences. It is pure logic without threads, IO or a clock. The caller passes the
//!   time in, so the simulator and recorded replays drive the same code that serves.
//! - `Engine` runs a `Core` over an `Executor` and overlaps host scheduling with device execution.
//!   `Engine::serve` is the loop behind an inbox of messages.
//!
//! The life of a step:
//!
//! 1. *schedule*: the policy admits waiting requests and schedules rows (prefill chunks, decodes)
//!    through a `SchedulerView`. Every row commits KV slots of the `Budget`.
//! 2. *claim* and *plan*: the cache allocates the slots and writes where the step reads and writes.
//! 3. *fill*: the batch gets its tokens. Those still on the device are marked `IN_FLIGHT`.
//! 4. *submit* and *wait*: the executor runs the step. The next one may be scheduled meanwhile.
//! 5. *retire*: the step's K/V is valid, and slots that only the step still named are free.
//! 6. *commit*: sampled tokens are appended, drafts verified, and the stop rule applied. The outbox
//!    gets the events.
//!
//! ```
//! use kvasir_engine::{Chunked, Core, Engine, Limits, Mixing, Order, Params, Request, Turn};
//! use kvasir_kv::{CacheConfig, CacheKind, build};
//! use kvasir_sim::Toy;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = build(CacheKind::Paged, &CacheConfig::new(1024))?;
//! let policy = Box::new(Chunked::new(256, Mixing::On { target: None }));
//! let core = Core::new(Limits::default(), Order::Fcfs, policy, cache);
//! // The tokens of this executor depend on every KV slot that it reads.
//! let mut engine = Engine::new(core, Toy::new(), || 0);
//!
//! let prompts = [vec![1, 2, 3], vec![4; 100]];
//! let params = Params { max_tokens: 8, ..Params::default() };
//! for (tag, prompt) in (0..).zip(&prompts) {
//!     engine.add_request(Request { tag, prompt: prompt.clone(), params: params.clone() })?;
//! }
//! let mut answers = [vec![], vec![]];
//! while engine.step()? != Turn::Idle {
//!     let outbox = engine.core_mut().outbox();
//!     for output in outbox.iter() {
//!         answers[output.event.tag as usize].extend_from_slice(output.tokens);
//!     }
//!     outbox.clear();
//! }
//! // Batched together, each answer is that of its request run alone.
//! assert_eq!(answers, prompts.map(|prompt| Toy::alone(&prompt, 8, true)));
//! # Ok(())
//! # }
//! ```
//!
//! Folders in reading order; each imports only from those before it:
//!
//! 1. `request`: a request, its sequence of tokens, its end and its events.
//! 2. `scheduler`: queue, KV slots, retained sessions, and the policies with the view they act
//!    through.
//! 3. `speculation`: what is drafted, and how much of it a step verifies.
//! 4. `step`: builds a step from scheduled rows and commits its results.
//! 5. `core` (`replay`: operations of recorded cases only, behind the feature `replay`), then `engine`.
//! 6. `config`: from a configuration to limits, policy, cache and core.
//! 7. `serving_loop` and `trace` (step traces); `kv_file` and `replicas` stand alone.
//!
//! `tests/toy` is the main test: every completion must equal that of its request run alone.
//!
//! The crate must not know HTTP, JSON bodies, tensors or kernels.

#![forbid(unsafe_code)]

pub(crate) mod config;
pub(crate) mod core;
pub(crate) mod engine;
pub(crate) mod kv_file;
pub(crate) mod replicas;
pub(crate) mod request;
pub(crate) mod scheduler;
pub(crate) mod serving_loop;
pub(crate) mod speculation;
pub(crate) mod step;
pub(crate) mod trace;

pub use crate::config::EngineConfig;
pub use crate::config::error::{Argument, ConfigError};
pub use crate::config::facts::{Facts, GroupFacts};
pub use crate::config::join_reason::JoinReason;
pub use crate::config::memory_division::{MemoryDivision, StateDivision, WindowDivision};
pub use crate::config::policy::PolicyConfig;
pub use crate::config::resolve::Resolved;
pub use crate::core::Core;
pub use crate::core::sessions::CutObstacle;
pub use crate::engine::kv_transfer::{ExportKv, KvTransferError};
pub use crate::engine::lockstep::Lockstep;
pub use crate::engine::{Engine, Exit, Observer, Turn};
pub use crate::kv_file::{KvFile, KvFileError, KvFileHeader, KvFileWriter};
pub use crate::replicas::load_order::Load;
pub use crate::replicas::rank_load::RankLoad;
pub use crate::replicas::role::{Phase, Role, UnknownRole};
pub use crate::replicas::role_router::{RoleCharge, RoleRouter};
pub use crate::replicas::route::{Imbalance, Route, RouteError, RouteRequest, RouterConfig, UnknownRoute};
pub use crate::replicas::router::{Charge, Router};
pub use crate::replicas::status::{ReplicaPhase, ReplicaStatus, Replicas, Routing, TransferCounts};
pub use crate::request::event::{Event, EventOutput, Outbox, Summary};
pub use crate::request::finish::{Fault, Finish, Parameter, Refusal};
pub use crate::request::ids::{RequestId, SessionId};
pub use crate::request::kv_transfer::{ImportCounts, KvExport, KvImport};
pub use crate::request::params::{Params, Pin, Request};
pub use crate::request::prefix_match::{FirstAdmission, PrefixMatch};
pub use crate::request::proposal::{Evidence, Proposal};
pub use crate::request::resumption::Resumption;
pub use crate::request::sequence::{Sequence, Status};
pub use crate::request::timings::{Nanos, Timings};
pub use crate::scheduler::coalescer::{Coalescer, Coalescing, LocalState, ReplicaState};
pub use crate::scheduler::defer_reason::DeferReason;
pub use crate::scheduler::kv_manager::{PublishAt, admission::AdmissionTerms};
pub use crate::scheduler::limits::{Costs, Limits};
pub use crate::scheduler::policy::Policy;
pub use crate::scheduler::policy::chunked::{Chunked, Mixing, StepTarget};
pub use crate::scheduler::policy::prefill_first::{Chunking, PrefillFirst, prefill_chunk};
pub use crate::scheduler::policy::rectangular::Rectangular;
pub use crate::scheduler::policy::rectangular::config::RectangularConfig;
pub use crate::scheduler::queue::Order;
pub use crate::scheduler::record::{Admission, Arrival, Deferral, StepRecord};
pub use crate::scheduler::schedule::{Feed, RectangleFeed};
pub use crate::scheduler::view::SchedulerView;
pub use crate::serving_loop::{Inbox, Message, Serving};
pub use crate::speculation::drafter::Drafter;
pub use crate::speculation::lookup::MOST_DRAFTS;
pub use crate::speculation::lookup::ngram_drafter::{NGRAM, NgramDrafter};
pub use crate::speculation::lookup::suffix_drafter::SuffixDrafter;
pub use crate::speculation::statistics::DraftStats;
pub use crate::speculation::width::DraftWidth;
pub use crate::trace::step_source::{StepEvent, StepSource};
pub use crate::trace::step_trace::{StepTrace, TableChange};
pub use crate::trace::tracer::{TraceSink, Tracer};

/// Arithmetic of the `rectangular` policy, for replays of recorded steps.
pub mod rectangular {
    pub use crate::scheduler::policy::rectangular::admission::{DecodingRow, NewRow, length_allows};
    pub use crate::scheduler::policy::rectangular::config::RectangularConfig;
    pub use crate::scheduler::policy::rectangular::prefill::{HitPlan, PrefillShape};
    pub use crate::scheduler::policy::rectangular::rectangle::Rectangle;
    pub use crate::scheduler::policy::rectangular::rotation::{Candidate, select_rows};
    pub use crate::scheduler::policy::rectangular::rules::Rules;
    pub use crate::scheduler::record::{ChunkRecord, Projection, RectangleRecord, SkippedPrefill};
}

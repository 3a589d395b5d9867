//! The scheduler and step loop of the engine: continuous batching, chunked prefill, prefix-cache
//! hits, preemption, speculative decoding and request lifecycle.
//!
//! - `Core` decides: it owns a scheduling policy, the KV cache bookkeeping, the waiting queue and
//!   the table of sequences. It is pure logic without threads, IO or a clock. The caller passes the
//!   time in, so the simulator and recorded replays drive the same code that serves.
//! - `Engine` runs a `Core` over an `Executor` and overlaps host scheduling with device execution.
//!   `Engine::serve` is the loop behind an inbox of messages.
//!
//! One step: `policy/` picks rows through the `SchedulerView` (desk.rs), make.rs claims KV slots and fills
//! the batch, the executor runs it, and settle.rs commits the sampled tokens. `tests/toy` is the
//! main test: every completion must equal that of its request run alone.
//!
//! The crate must not know HTTP, JSON bodies, tensors or kernels.
#![forbid(unsafe_code)]

mod amend;
mod build_step;
mod check;
mod coalesce;
mod commit_step;
mod core;
mod defer_reason;
mod draft;
mod engine;
mod event;
mod finish;
mod ids;
mod limits;
mod meter;
mod observer;
mod policy;
mod queue;
mod record;
pub mod rectangular;
mod request;
mod retained_sessions;
mod route;
mod scheduler_view;
mod sequence;
mod serve;
mod slab;
mod state_slots;
mod step_trace;
mod stop;
mod tidy;
mod timings;
mod trace;
mod world;

pub use self::core::Core;
pub use coalesce::{Coalescer, Coalescing, LocalState, ReplicaState};
pub use defer_reason::DeferReason;
pub use draft::{DraftStats, Drafter, Proposal};
pub use engine::{Completion, Engine, Exit, Turn};
pub use event::{Event, Outbox, Summary};
pub use finish::{Fault, Finish, Parameter, Refusal};
pub use ids::{RequestId, SessionId};
pub use limits::{Costs, Limits};
pub use observer::Observer;
pub use policy::{Chunked, Chunking, Mixing, Policy, PrefillFirst, Rectangular, StepTarget, prefill_chunk};
pub use queue::Order;
pub use record::{Admission, Arrival, Held, StepRecord};
pub use rectangular::RectangularConfig;
pub use request::{Params, Request};
pub use route::{Balance, Charge, Load, Router, UnknownReplica};
pub use scheduler_view::{Admit, Feed, SchedulerView};
pub use sequence::{Sequence, Status};
pub use serve::Message;
pub use state_slots::StateSlots;
pub use step_trace::{StepTrace, TableChange};
pub use timings::{Nanos, Timings};
pub use trace::{TraceSink, Tracer};
pub use world::PublishAt;

//! Sequences, policies and the step loop: everything that decides.
//!
//! A [`Core`] owns a policy, a cache, a queue and the sequences; it is pure logic, driven from outside with the time
//! handed in. An [`Engine`] runs it over an [`Executor`](kvasir_exec::Executor).
#![forbid(unsafe_code)]

mod amend;
mod check;
mod coalesce;
mod core;
mod desk;
mod draft;
mod engine;
mod event;
mod finish;
mod kept;
mod limits;
mod make;
mod meter;
mod observer;
mod policy;
mod queue;
mod reason;
mod record;
pub mod rectangular;
mod request;
mod route;
mod sequence;
mod serve;
mod settle;
mod slab;
mod state_slots;
mod step_trace;
mod stop;
mod tidy;
mod trace;
mod world;

pub use self::core::Core;
pub use coalesce::{Coalescer, Coalescing, LocalState, ReplicaState};
pub use desk::{Admit, Desk, Feed};
pub use draft::{DraftStats, Drafter, Proposal};
pub use engine::{Completion, Engine, Exit, Turn};
pub use event::{Event, Outbox, Summary};
pub use finish::{Fault, Finish, Parameter, Refusal};
pub use kept::SessionId;
pub use limits::{Costs, Limits};
pub use observer::Observer;
pub use policy::{
    Chunked, Chunking, Mixing, Policy, PrefillFirst, PublishAt, Rectangular, StepTarget, prefill_chunk,
};
pub use queue::Order;
pub use reason::Reason;
pub use record::{Admission, Arrival, Held, Nanos, StepRecord};
pub use rectangular::RectangularConfig;
pub use request::{Params, Request, RequestId};
pub use route::{Balance, Charge, Load, Router, UnknownReplica};
pub use sequence::{Sequence, Status, Timings};
pub use serve::Message;
pub use state_slots::StateSlots;
pub use step_trace::{StepTrace, TableChange};
pub use trace::{TraceSink, Tracer};

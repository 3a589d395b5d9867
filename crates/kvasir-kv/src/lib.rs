//! The bookkeeping half of every cache: slots, claims, plans, sharing and eviction, as integers.
//!
//! Nothing here knows a tensor, a clock, IO, a thread or a global. A step goes
//! *claim → plan → submit → retire*; see [`Cache`] for the contract and [`Plan`] for what a backend gets.
#![forbid(unsafe_code)]

mod bits;
mod error;
mod face;
mod ids;
mod inflight;
mod moves;
mod nodes;
mod plan;
mod seqs;

pub use error::CacheError;
pub use face::{Cache, CacheKind, ClaimRow, Face, Hit, Prefix, Rewind, Room, Sequences, Tree};
pub use ids::{BlockId, Position, SeqId, Slot, StepId, Token};
pub use inflight::{Flight, InFlight};
pub use moves::Moves;
pub use nodes::Nodes;
pub use plan::{Layout, Mask, Plan, PlanKind, PlanRow, PoolId, RowMove, Segment, Span};
pub use seqs::SeqTable;

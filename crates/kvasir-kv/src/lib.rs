//! The bookkeeping half of every cache: slots, claims, plans, sharing and eviction, as integers.
//!
//! Nothing here knows a tensor, a clock, IO, a thread or a global. A step goes
//! *claim → plan → submit → retire*; see [`Cache`] for the contract and [`Plan`] for what a backend gets.
#![forbid(unsafe_code)]

mod bits;
pub mod blocks;
mod error;
mod face;
mod ids;
mod idset;
mod inflight;
mod moves;
mod nodes;
mod paged;
mod plan;
mod radix;
mod seqs;

pub use error::CacheError;
pub use face::{Cache, CacheKind, ClaimRow, Face, Hit, Prefix, Rewind, Room, Sequences, Tree};
pub use ids::{BlockId, Position, SeqId, Slot, StepId, Token};
pub use inflight::{Flight, InFlight};
pub use moves::Moves;
pub use nodes::Nodes;
pub use paged::{CacheEvent, HashIndex, Paged, block_hash};
pub use plan::{Layout, Mask, Plan, PlanKind, PlanRow, PoolId, RowMove, Segment, Span};
pub use radix::{NodeId, Radix, RadixIndex, RadixTree, Reached};
pub use seqs::SeqTable;

//! The bookkeeping half of every cache: slots, claims, plans, sharing and eviction, as integers.
//!
//! Nothing here knows a tensor, a clock, IO, a thread or a global. A step goes
//! *claim → plan → submit → retire*; see [`Cache`] for the contract and [`Plan`] for what a backend gets.
#![forbid(unsafe_code)]

mod bits;
pub mod blocks;
mod cells;
mod contiguous;
mod error;
mod face;
mod facts;
mod ids;
mod idset;
mod inflight;
mod kept;
mod line;
mod long;
mod lowering;
mod moves;
mod nodes;
mod paged;
mod plan;
mod prefix;
mod prefixed;
mod radix;
mod rare;
mod registry;
mod ring;
mod seqs;
mod session;
mod tree;
mod victims;

pub use cells::Cells;
pub use contiguous::Contiguous;
pub use error::CacheError;
pub use face::{
    BlockUse, Cache, CacheKind, ClaimRow, Face, Hit, Lookup, Prefix, Rewind, Room, Sequences, Tree,
};
pub use facts::{ConfigFacts, Fact, FactError, KvFacts, LayerForm, SCHEMA_VERSION};
pub use ids::{BlockId, Position, SeqId, Slot, StepId, Token};
pub use inflight::{Flight, InFlight};
pub use kept::KeptTables;
pub use long::LongList;
pub use lowering::Lowering;
pub use moves::Moves;
pub use nodes::Nodes;
use nodes::RareNodes;
pub use paged::{CacheEvent, HashIndex, Paged, block_hash};
pub use plan::{Layout, Mask, Plan, PlanKind, PlanRow, PoolId, RowMove, Segment, Span};
pub use prefix::{PrefixWatch, SharedPrefix};
pub use prefixed::Prefixed;
pub use radix::{NodeId, Radix, RadixIndex, RadixTree, Reached};
use rare::RareList;
pub use registry::{Builders, CacheBuilder, CacheConfig, RegistryError, build};
pub use ring::Rings;
pub use seqs::SeqTable;
pub use session::{
    Branching, HeldCache, Matching, Rewinding, Session, SessionKey, Sessions, Speculating, Use,
};
pub use tree::TreeCache;
pub use victims::VictimSearch;

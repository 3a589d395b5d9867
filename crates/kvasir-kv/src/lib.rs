//! Device-independent KV cache bookkeeping: slot and block allocation, block tables, prefix
//! caching, copy-on-write, eviction and draft trees, all as integers.
//!
//! The life of a step: *claim* (allocate slots) → *plan* (block tables, slot mapping, masks) →
//! *submit* (the backend runs it) → *retire* (lengths become visible, deferred releases happen).
//! The trait `Cache` is the contract; `Plan` is the attention metadata that a backend reads.
//!
//! Where to look:
//!
//! - Single sequence: `contiguous` (with ring buffers for sliding windows), `tree` (draft trees for
//!   speculative decoding).
//! - Token-granular pool as in llama.cpp: `cells`.
//! - Paged attention: `blocks` over two prefix-cache indices, `paged` (hash chain, LRU) and `radix`
//!   (radix tree).
//! - Frozen shared prefix in a pool of its own, as cascade attention reads it: `prefix`,
//!   `prefixed`.
//! - Shared parts: `inflight` (deferred release), `plan_cache` (incremental block tables), `nodes` (draft
//!   trees), `slot_copies` (slot copies), `victims` (preemption victims).
//!
//! Must not know: a tensor, a clock, IO, a thread or a global. Guarded by the model-based tests in
//! `tests/` (`random_operations.rs`, `shadow/`, `prefix_model.rs`, `radix_model.rs`, `victims.rs`,
//! `prefixed.rs`) and by `benches/blocks.rs`.

#![forbid(unsafe_code)]

mod bits;
pub mod blocks;
mod cache;
mod cells;
mod contiguous;
mod error;
mod facts;
mod ids;
mod idset;
mod inflight;
mod line;
mod lowering;
mod nodes;
mod paged;
mod plan;
mod plan_cache;
mod prefix;
mod prefixed;
mod radix;
mod rare;
mod registry;
mod ring;
mod seqs;
mod session;
mod slot_copies;
mod tail_buffered;
mod tree;
mod victims;

pub use cache::{
    BlockUse, Cache, CacheKind, Capability, ClaimRow, Hit, Lookup, PoolUsage, Prefix, Rewind, Sequences, Tree,
};
pub use cells::Cells;
pub use contiguous::Contiguous;
pub use error::CacheError;
pub use facts::{ConfigFacts, Fact, FactError, KvFacts, LayerForm, SCHEMA_VERSION};
pub use ids::{BlockId, Position, SeqId, Slot, StepId, Token};
pub use inflight::{Flight, InFlight};
pub use lowering::Lowering;
pub use nodes::Nodes;
use nodes::RareNodes;
pub use paged::{CacheEvent, HashIndex, Paged, block_hash};
pub use plan::{Layout, Mask, Plan, PlanKind, PlanRow, PoolId, Segment, SlotCopy, Span};
pub use plan_cache::PlanCache;
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
pub use slot_copies::Moves;
pub use tail_buffered::TailBuffered;
pub use tree::TreeCache;
pub use victims::VictimSearch;

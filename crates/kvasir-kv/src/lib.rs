//! Device-independent KV cache bookkeeping: slot and block allocation, block tables, prefix
//! caching, copy-on-write, eviction and draft trees, all as integers.
//!
//! The life of a step: *claim* (allocate slots) → *plan* (block tables, slot mapping, masks) →
//! *submit* (the backend runs it) → *retire* (lengths become visible, deferred releases happen).
//! The trait `Cache` is the contract; `Plan` is the attention metadata that a backend reads.
//!
//! ```
//! use kvasir_kv::{Cache, CacheConfig, CacheError, CacheKind, ClaimRow, Mask, Plan, StepId, build};
//!
//! let mut cache = build(CacheKind::Paged, &CacheConfig::new(1024))?;
//! let (seq, step) = (cache.open()?, StepId(1));
//!
//! // Claim: each of the prompt's five tokens gets a slot.
//! cache.claim(step, &[ClaimRow::new(seq, 5)])?;
//!
//! // Plan: where a backend writes K and V, and what each query reads.
//! let mut plan = Plan::default();
//! cache.plan(step, &mut plan)?;
//! assert_eq!(plan.write_slots, [0, 1, 2, 3, 4]);
//! assert_eq!((plan.rows[0].read_len, plan.rows[0].mask), (5, Mask::Causal));
//!
//! // The backend runs the step if the plan is still fresh; then it retires.
//! cache.check_fresh(&plan)?;
//! assert_eq!((cache.len(seq)?, cache.claimed_len(seq)?), (0, 5));
//! cache.retire(step)?;
//! assert_eq!(cache.len(seq)?, 5);
//! cache.close(seq)?;
//! # Ok::<(), CacheError>(())
//! ```
//!
//! Reading order; each folder imports only from those before it:
//!
//! 1. `contract`: ids, plans, masks, errors, KV events, the trait `Cache` with the operations of a
//!    step, and its capability traits.
//! 2. `shared`: steps in flight (deferred release), incremental block tables, draft trees, slot
//!    copies, preemption victims, the eviction order, small lists.
//! 3. `contiguous` (one sequence, ring buffers for sliding windows) and `tree` (draft trees for
//!    speculative decoding); `cells`, the token-granular pool of llama.cpp.
//! 4. `blocks`: paged attention over two prefix-cache indices, `paged` (hash chain, LRU) and
//!    `radix` (radix tree).
//! 5. `prefixed`: a frozen shared prefix in a pool of its own, as cascade attention reads it.
//! 6. `grouped`: the cache of a model with several layer groups: K/V, the rows of sliding windows,
//!    recurrent states and their checkpoints.
//! 7. `registry`: caches built by kind.
//!
//! `metadata` stands beside: the KV cache shape per layer, as model files state it.
//!
//! Must not know: a tensor, a clock, IO, a thread or a global. Guarded by the model-based tests in
//! `tests/` (`random_operations.rs`, `shadow/`, `prefix_model.rs`, `radix_model.rs`, `victims.rs`,
//! `prefixed.rs`, `states/`, `windows/`) and by `benches/blocks.rs`.

#![forbid(unsafe_code)]

pub mod blocks;
mod cells;
mod contiguous;
pub(crate) mod contract;
mod grouped;
mod metadata;
mod prefixed;
mod registry;
pub(crate) mod shared;
mod tree;

pub use crate::blocks::hash::{BlockHashMap, block_hash, prefix_hashes};
pub use crate::blocks::paged::Paged;
pub use crate::blocks::paged::index::HashIndex;
pub use crate::blocks::radix::Radix;
pub use crate::blocks::radix::index::RadixIndex;
pub use crate::blocks::radix::tree::{NodeId, RadixTree, Reached};
pub use crate::cells::Cells;
pub use crate::contiguous::Contiguous;
pub use crate::contract::cache::{Cache, CacheShape, ClaimRow};
pub use crate::contract::cache_end::CacheEnd;
pub use crate::contract::capabilities::{
    Anchors, Hit, Inspect, Lookup, MemoryHints, Prefix, Rewind, Sequences, Tree, VictimSearch, Victims,
};
pub use crate::contract::error::CacheError;
pub use crate::contract::frozen_rows::FrozenRows;
pub use crate::contract::group::{
    Anchor, GroupId, GroupKind, Groups, MAX_GROUPS, RecomputeCosts, Slots, StateConfig, WindowConfig,
};
pub use crate::contract::ids::{BlockId, PoolId, Position, SeqId, Slot, StepId, Token};
pub use crate::contract::kind::{CacheKind, Capability};
pub use crate::contract::kv_event::KvEvent;
pub use crate::contract::lowering::Lowering;
pub use crate::contract::mask::Mask;
pub use crate::contract::plan::Plan;
pub use crate::contract::plan_table::PlanTable;
pub use crate::contract::rings::Rings;
pub use crate::contract::section::{Layout, PlanKind, PlanRow, Section, Segment, SlotCopy};
pub use crate::contract::span::Span;
pub use crate::contract::state_section::{StateRow, StateSave, StateSection};
pub use crate::contract::usage::{BlockUse, PoolUsage};
pub use crate::metadata::{Fact, FactError, KvFacts, LayerForm, SCHEMA_VERSION};
pub use crate::prefixed::Prefixed;
pub use crate::prefixed::shared_prefix::{PrefixWatch, SharedPrefix};
pub use crate::registry::{CacheConfig, build};
pub use crate::shared::draft_nodes::DraftNodes;
pub use crate::shared::eviction_order::EvictionOrder;
pub use crate::shared::in_flight::{InFlight, InFlightStep};
pub use crate::shared::sequence_table::SeqTable;
pub use crate::shared::slot_copies::SlotCopies;
#[doc(hidden)] // for the token lists of `kvasir-engine`
pub use crate::shared::tail_buffered::TailBuffered;
pub use crate::tree::TreeCache;

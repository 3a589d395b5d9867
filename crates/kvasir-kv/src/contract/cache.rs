//! `Cache`: the trait of every KV cache, with the operations of a step (claim, plan, retire). All
//! other operations are in the capability traits (`contract/capabilities.rs`).
//!
//! An operation that changes what an unsubmitted plan may name raises `Cache::generation`; `retire`
//! never does. For every operation of these traits:
//!
//! - An error changes nothing that a later call reports. Memory that the call writes into is
//!   unspecified after it.
//! - An id that was never issued, or whose sequence is closed, is refused (`UnknownSequence`).
//! - Where no cost is named, the call takes constant time; nothing blocks or does IO.

use crate::contract::capabilities::{
    Anchors, Inspect, MemoryHints, Prefix, Rewind, Sequences, Tree, Victims,
};
use crate::contract::error::CacheError;
use crate::contract::frozen_rows::FrozenRows;
use crate::contract::group::{GroupId, Groups, RecomputeCosts, Slots, StateConfig, WindowConfig};
use crate::contract::ids::{Position, SeqId, Slot, StepId};
use crate::contract::kind::{CacheKind, Capability};
use crate::contract::plan::Plan;
use crate::contract::rings::Rings;
use crate::contract::usage::{BlockUse, PoolUsage};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One batch row of a step to be claimed: one sequence and its token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRow {
    /// The sequence; a step may name it only once.
    pub seq: SeqId,
    /// Tokens recomputed although their K and V are cached (a prefix hit that ends inside a chunk).
    /// They are the last ones before the claimed length; their writes go to a dummy slot.
    pub redirected: u32,
    /// New tokens, each of which gets a slot. For a sequence with a proposed draft tree this must
    /// be the number of its nodes.
    pub tokens: u32,
    /// Number of draft tokens of a chain, which are the last of `tokens` and may be rejected. 0 for
    /// a draft tree.
    pub drafts: u32,
}

impl ClaimRow {
    /// A row without redirected writes.
    pub fn new(seq: SeqId, tokens: u32) -> Self {
        Self { seq, redirected: 0, tokens, drafts: 0 }
    }
}

/// Constant properties of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// The kind of cache.
    pub kind: CacheKind,
    /// Slots it may allocate, dummy slots not included.
    pub capacity: u32,
    /// Slots per block, the unit of allocation; 1 for token-granular caches.
    pub block_size: u32,
    /// A slot that no claim gets, for the K and V of dummy rows: of the dummy block if there is
    /// one, else the slot behind the capacity, which a pool must have then.
    pub dummy_slot: Slot,
    /// Length of the shared prefix in front of every sequence, in positions; it takes no slots
    /// here.
    pub base: Position,
    /// Ring buffers of sliding-window layers, if this cache has them.
    pub rings: Option<Rings>,
    /// The layer groups of the cache.
    pub groups: Groups,
    /// The pools of the window groups, from narrow to wide.
    pub windows: Vec<WindowConfig>,
    /// The pool of recurrent states, if the model has recurrent layers.
    pub states: Option<StateConfig>,
}

impl CacheShape {
    /// A token-granular cache.
    pub(crate) fn tokens(kind: CacheKind, capacity: u32) -> Self {
        Self::blocks(kind, capacity, 1, capacity)
    }

    /// A cache of blocks, without further groups.
    pub(crate) fn blocks(kind: CacheKind, capacity: u32, block_size: u32, dummy_slot: Slot) -> Self {
        let (rings, groups, windows, states) = (None, Groups::default(), Vec::new(), None);
        Self { kind, capacity, block_size, dummy_slot, base: 0, rings, groups, windows, states }
    }

    /// Number of slots that an executor's pools need per layer group: those that the cache may
    /// allocate and a dummy block, or the recurrent states.
    pub fn pool_slots(&self) -> Slots {
        let windows = self.windows.iter().map(|config| config.capacity);
        let pools = std::iter::once(self.capacity).chain(windows);
        let pools = pools.map(|capacity| capacity.saturating_add(self.block_size));
        let mut slots = Slots::default();
        let counts = pools.chain(self.states.map(|config| config.slots()));
        slots.iter_mut().zip(counts).for_each(|(slots, count)| *slots = count);
        slots
    }
}

/// The contract of every KV cache. The life of a step: *claim → plan → submit → retire*.
///
/// - `claim` allocates slots for every token of the step, or fails and changes nothing.
/// - `plan` changes nothing that another call reports, and may be repeated.
/// - `retire` publishes lengths, is idempotent per step, and ends the step's leases.
/// - `cancel` undoes a claim that was never submitted.
///
/// Ids are of one cache: passing those of another is refused or names another sequence.
///
/// Steps retire in the order of their claims. With several steps in flight (overlapped scheduling)
/// a claim builds on the *claimed* length; [`Cache::len`] reports the retired one.
///
/// Every operation that changes what an unsubmitted plan may name raises [`Cache::generation`];
/// `retire` does not.
pub trait Cache: Inspect + MemoryHints + Victims + Send {
    /// Constant from construction on; callers may copy it.
    fn shape(&self) -> &CacheShape;
    /// Current pool usage, in slots.
    fn usage(&self) -> PoolUsage;
    /// Current pool usage of a layer group, in slots. For the state group it counts sequences with
    /// a live state, out of [`StateConfig::live`](crate::StateConfig::live). All zero for a group
    /// that the cache lacks.
    fn usage_of(&self, group: GroupId) -> PoolUsage {
        if group == GroupId::FULL { self.usage() } else { PoolUsage::default() }
    }
    /// Appends the ranges of free slots of a K/V layer group. Their rows may be lost: a claim
    /// writes them before they are read. Appends nothing for the state group. Linear in the blocks.
    fn free_slots(&self, group: GroupId, into: &mut Vec<Range<Slot>>) {
        let shape = self.shape();
        if shape.groups.states() == Some(group) {
            return;
        }
        let (block_size, end) = (shape.block_size, shape.pool_slots()[group.index()]);
        let mut blocks = Vec::new();
        self.visit_blocks_of(group, &mut blocks);
        let used = (0..).zip(&blocks).filter(|(_, used)| **used != BlockUse::Free);
        let used = used.map(|(block, _): (u32, _)| block * block_size);
        let mut start = 0;
        for slot in used.chain([end]) {
            into.extend((start < slot).then_some(start..slot));
            start = slot.saturating_add(block_size);
        }
    }
    /// Marks positions of `seq` at which a later prompt may diverge, such as ends of messages.
    /// Steps that pass them store checkpoints of the recurrent state there, rounded down to whole
    /// blocks. Caches without states ignore marks. Linear in the marks of the sequence.
    fn mark_checkpoints(&mut self, seq: SeqId, positions: &[Position]) -> Result<(), CacheError> {
        let _ = positions;
        self.len(seq).map(|_| ())
    }
    /// Sets the costs by which checkpoints are evicted. Caches without states ignore them.
    fn set_recompute_costs(&mut self, costs: RecomputeCosts) {
        let _ = costs;
    }
    /// Raised by every change that can make a plan stale.
    fn generation(&self) -> u64;
    /// Opens an empty sequence; its length is [`CacheShape::base`]. Fails with `TooManySequences`.
    fn open(&mut self) -> Result<SeqId, CacheError>;
    /// Closes a sequence, also while steps in flight name it. What only it owned is freed now, or
    /// when the last step that names it retires. Linear in its blocks.
    fn close(&mut self, seq: SeqId) -> Result<(), CacheError>;
    /// Preallocates slots up to length `upto`, outside a step; claims use them first. All or
    /// nothing (`Full`). Returns the length up to which the sequence holds slots; `upto` 0 only
    /// asks. Linear in the blocks that it takes. The default preallocates nothing.
    fn preallocate_slots(&mut self, seq: SeqId, upto: u32) -> Result<u32, CacheError> {
        let _ = upto;
        self.claimed_len(seq)
    }
    /// Retired length: tokens whose K and V have been computed. Linear in the rows in flight.
    fn len(&self, seq: SeqId) -> Result<u32, CacheError>;
    /// Length including all claims in flight.
    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError>;
    /// Position of the next claimed token; differs from the length after a range removal.
    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError>;
    /// Allocates slots for one step: all of them, or none with an error. Fails with
    ///
    /// - `StepOutOfOrder` unless `step` is above every step ever claimed, canceled ones included;
    /// - `BadClaim` if there is no row, a sequence is named twice, or counts are impossible;
    /// - `Unsettled` if a sequence has draft nodes that were not committed;
    /// - `Full` if the slots do not suffice, evictable ones included.
    ///
    /// Constant time per row that decodes one token, else linear in the blocks allocated; evicts
    /// cached blocks as needed.
    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError>;
    /// Writes the plan of a claimed step into `plan`, reusing its memory. `plan` may be any plan;
    /// its content does not matter. Fails with `UnknownStep`, with `RowGone` if a claimed row was
    /// truncated since, or with `UnknownSequence` if one was closed; such a step can only be
    /// canceled, or retired if it ran.
    ///
    /// Block tables are incremental: a batch like the last one costs constant time per row and its
    /// new entries. A row that is new or was edited costs time linear in its block table.
    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError>;
    /// Ends a step that ran: publishes its lengths and performs the releases deferred to it. With
    /// window groups, also releases the rows before the windows of its sequences. Linear in what it
    /// releases. Idempotent; fails with `StepOutOfOrder` if an older step has not retired.
    fn retire(&mut self, step: StepId) -> Result<(), CacheError>;
    /// Undoes the claim of a step that was not run. Fails with `StepOutOfOrder` unless it is the
    /// newest claim. Linear in what the claim took; its number is not used again.
    fn cancel(&mut self, step: StepId) -> Result<(), CacheError>;
    /// The rows that a [`SharedPrefix`](crate::SharedPrefix) can freeze, with the recurrent states
    /// of the checkpoints. Fails with `InFlight` while a step is in flight, and with `BadConfig`
    /// for kinds other than `contiguous` and for caches with rings.
    fn rows_to_freeze(&self) -> Result<FrozenRows, CacheError> {
        Err(CacheError::BadConfig("only a contiguous cache can be frozen"))
    }
    /// Refuses a stale plan (`StalePlan`): one whose generation is not the current one. The caller
    /// checks before it submits.
    fn check_fresh(&self, plan: &Plan) -> Result<(), CacheError> {
        if plan.generation == self.generation() {
            Ok(())
        } else {
            Err(CacheError::StalePlan { plan: plan.generation, current: self.generation() })
        }
    }
    /// Truncation, or `NoCapability`.
    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        Err(CacheError::NoCapability { kind: self.shape().kind, capability: Capability::Rewind })
    }
    /// Forks and range operations, or `NoCapability`.
    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        Err(CacheError::NoCapability { kind: self.shape().kind, capability: Capability::Sequences })
    }
    /// Anchors of published blocks, if the cache has them.
    fn anchors(&mut self) -> Option<&mut dyn Anchors> {
        None
    }
    /// Prefix caching, or `NoCapability`.
    fn prefix(&mut self) -> Result<&mut dyn Prefix, CacheError> {
        Err(CacheError::NoCapability { kind: self.shape().kind, capability: Capability::Prefix })
    }
    /// Draft trees, or `NoCapability`.
    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        Err(CacheError::NoCapability { kind: self.shape().kind, capability: Capability::Tree })
    }
}

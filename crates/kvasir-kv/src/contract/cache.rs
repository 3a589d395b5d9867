//! The cache traits: `Cache`, which every KV cache implements, and the optional capabilities
//! `Rewind`, `Sequences`, `Prefix` and `Tree`.
//!
//! A capability that a cache lacks is refused by name (`CacheError::NoCapability`), so callers need
//! not match on the cache kind. An operation that changes what an unsubmitted plan may name raises
//! `Cache::generation`; `retire` never does.
//!
//! For every operation of these traits:
//!
//! - An error changes nothing that a later call reports. Memory that the call writes into is
//!   unspecified after it.
//! - An id that was never issued, or whose sequence is closed, is refused (`UnknownSequence`).
//! - Where no cost is named, the call takes constant time; nothing blocks or does IO.

use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, Position, SeqId, Slot, StepId, Token};
use crate::contract::kind::{CacheKind, Capability};
use crate::contract::plan::{Plan, SlotCopy};
use crate::contract::rings::Rings;
use serde::{Deserialize, Serialize};

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
}

impl ClaimRow {
    /// A row without redirected writes.
    pub fn new(seq: SeqId, tokens: u32) -> Self {
        Self { seq, redirected: 0, tokens }
    }
}

/// Pool usage in slots. `free + evictable + held + leased` is the capacity; dummy slots are not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolUsage {
    /// Unreferenced slots without cached content.
    pub free: u32,
    /// Unreferenced slots that hold a cached prefix; allocated (evicted) after the free ones.
    pub evictable: u32,
    /// Slots that live sequences own.
    pub held: u32,
    /// Slots released by their owners that a step in flight still names.
    pub leased: u32,
}

impl PoolUsage {
    /// Slots that a claim can allocate now: free plus evictable.
    pub fn available(self) -> u32 {
        self.free + self.evictable
    }

    /// [`Cache::survey`] of a pool that allocates from slot 0 upward.
    pub(crate) fn visit_contiguous(self, slots: &mut Vec<BlockUse>) {
        slots.clear();
        for (n, used) in
            [(self.held, BlockUse::Held), (self.leased, BlockUse::Leased), (self.free, BlockUse::Free)]
        {
            slots.resize(slots.len() + n as usize, used);
        }
    }
}

/// State of one block (or cell).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockUse {
    /// Unreferenced and without content.
    Free,
    /// Unreferenced, holds a cached prefix, evictable.
    Cached,
    /// Owned by live sequences.
    Held,
    /// Released by its owners; a step in flight still names it.
    Leased,
    /// Takes redirected writes; never allocated.
    Dummy,
}

/// Input of [`Cache::victims`].
#[derive(Clone, Copy, Debug, Default)]
pub struct VictimSearch<'a> {
    /// Slots that must come free.
    pub slots: u32,
    /// Sequences that may be closed, preferred victim first.
    pub candidates: &'a [SeqId],
    /// A sequence that is truncated to a length in any case, or closed if that is 0. It is not
    /// among the candidates.
    pub truncate: Option<(SeqId, u32)>,
    /// The newest prefix lookup, which is to be attached afterwards: its blocks stay in use, so
    /// they do not come free.
    pub hit: Hit,
    /// Whether to count slots that come free only when the steps in flight have retired. A cache
    /// may count fewer. Not together with a hit.
    pub leased_too: bool,
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
pub trait Cache: Send {
    /// The kind of this cache.
    fn kind(&self) -> CacheKind;
    /// Slots it may allocate, dummy slots not included.
    fn capacity(&self) -> u32;
    /// Slots per block, the unit of allocation; 1 for token-granular caches.
    fn block_size(&self) -> u32;
    /// A slot that no claim gets, for the K and V of dummy rows: of the dummy block if there is one,
    /// else the slot behind the capacity, which a pool must have then.
    fn dummy_slot(&self) -> Slot {
        self.capacity()
    }
    /// Length of the shared prefix in front of every sequence, in positions; it takes no slots
    /// here.
    fn base(&self) -> Position {
        0
    }
    /// Ring buffers of sliding-window layers, if this cache has them.
    fn rings(&self) -> Option<&Rings> {
        None
    }
    /// Current pool usage, in slots.
    fn usage(&self) -> PoolUsage;
    /// Writes the state of each block by id; ids past the end are free. Writes nothing if the cache
    /// does not track it. For visualization: may cost time linear in the high-water mark.
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        blocks.clear();
    }
    /// Raised by every change that can make a plan stale.
    fn generation(&self) -> u64;
    /// Opens an empty sequence; its length is [`Cache::base`]. Fails with `TooManySequences`.
    fn open(&mut self) -> Result<SeqId, CacheError>;
    /// Closes a sequence, also while steps in flight name it. What only it owned is freed now, or
    /// when the last step that names it retires. Linear in its blocks.
    fn close(&mut self, seq: SeqId) -> Result<(), CacheError>;
    /// Selects preemption or eviction victims: which candidates to close so that enough slots come
    /// free. Returns false, and no victims, if not even all of them suffice. Changes nothing; time
    /// linear in the block tables of the candidates.
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool;
    /// Preallocates slots up to length `upto`, outside a step; claims use them first. All or
    /// nothing (`Full`). Returns the length up to which the sequence holds slots; `upto` 0 only
    /// asks. Linear in the blocks that it takes. The default preallocates nothing.
    fn preallocate_slots(&mut self, seq: SeqId, upto: u32) -> Result<u32, CacheError> {
        let _ = upto;
        self.claimed_len(seq)
    }
    /// Reserves host memory for up to `tokens`, so that later claims do not reallocate; allocates
    /// no slots. Ignores unknown sequences.
    fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        let _ = (seq, tokens);
    }
    /// Reserves host memory for plans of `rows` rows whose sequences own `blocks` blocks together.
    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        let _ = (blocks, rows);
    }
    /// Appends the blocks of a sequence in order of position, preallocated ones included. For
    /// inspection: linear in them. In token-granular caches a block is one slot.
    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError>;
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
    /// Ends a step that ran: publishes its lengths and performs the releases deferred to it. Linear
    /// in those. Idempotent; fails with `StepOutOfOrder` if an older step has not retired.
    fn retire(&mut self, step: StepId) -> Result<(), CacheError>;
    /// Undoes the claim of a step that was not run. Fails with `StepOutOfOrder` unless it is the
    /// newest claim. Linear in what the claim took; its number is not used again.
    fn cancel(&mut self, step: StepId) -> Result<(), CacheError>;
    /// Consistency check of the whole bookkeeping; reports the first violation. For tests: linear
    /// in everything held.
    fn check(&self) -> Result<(), String>;

    /// Defragments: queues slot copies so that contiguous plans are possible again. Returns how
    /// many copies go out with the next plan. Fails with `InFlight` while a step is claimed. Linear
    /// in the slots in use. The default does nothing.
    fn compact(&mut self) -> Result<u32, CacheError> {
        Ok(0)
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
        Err(CacheError::NoCapability { kind: self.kind(), capability: Capability::Rewind })
    }
    /// Forks and range operations, or `NoCapability`.
    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        Err(CacheError::NoCapability { kind: self.kind(), capability: Capability::Sequences })
    }
    /// Prefix caching, or `NoCapability`.
    fn prefix(&mut self) -> Result<&mut dyn Prefix, CacheError> {
        Err(CacheError::NoCapability { kind: self.kind(), capability: Capability::Prefix })
    }
    /// Draft trees, or `NoCapability`.
    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        Err(CacheError::NoCapability { kind: self.kind(), capability: Capability::Tree })
    }
}

/// Capability: truncation of a sequence, as after rejected draft tokens.
pub trait Rewind {
    /// The lowest length that [`Rewind::rewind_to`] accepts; above 0 where ring buffers have
    /// overwritten rows.
    fn lowest_rewind(&self, seq: SeqId) -> Result<u32, CacheError> {
        let _ = seq;
        Ok(0)
    }
    /// Truncates to positions below `to`, claims in flight included. Fails with `RewindOutOfRange`
    /// unless `to` is between [`Rewind::lowest_rewind`] and the next position, and with `Unsettled`
    /// if draft nodes are. Linear in the blocks released. A claimed row that it cuts can only be
    /// canceled, or retired if it ran.
    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError>;
}

/// Capability: forks, copies and removals of ranges (llama.cpp: `seq_cp`, `seq_rm`, `seq_keep`).
/// Copies K and V of partial blocks only; whole blocks are shared.
pub trait Sequences {
    /// Makes `dst` an owner of `src`'s retired rows with positions in `range`; claimed rows may yet
    /// be canceled. Refused if `dst` owns one of the positions (`CopyOverlaps`), holds rows of
    /// another fork family, or has steps or draft nodes in flight, if `src` has no retired rows
    /// (`NothingToCopy`), or if a partial block finds no slots (`Full`). Linear in the blocks.
    fn copy(&mut self, src: SeqId, dst: SeqId, range: std::ops::Range<Position>) -> Result<(), CacheError>;
    /// Removes the rows in `range` from `seq`; the remaining positions are never renumbered. A
    /// range that ends below the next position must be retired (`InFlight`) in block caches. Linear
    /// in the blocks.
    fn remove(&mut self, seq: SeqId, range: std::ops::Range<Position>) -> Result<(), CacheError>;
    /// Closes every other sequence of `seq`'s fork family.
    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError>;
    /// Opens `n` sequences that share all retired rows of `seq` (copy-on-write): all, or none with
    /// an error (`TooManySequences`, `Full`). Linear in `n` times the blocks.
    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError>;
}

/// A prefix-cache hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// Leading tokens whose K and V are cached; whole blocks.
    pub tokens: u32,
    /// Slots of the hit that are unreferenced now: attaching takes them out of
    /// [`PoolUsage::evictable`].
    pub evictable: u32,
    /// Ticket of this lookup, for [`Prefix::attach`].
    #[serde(skip)]
    pub lookup: Lookup,
}

/// Ticket of one lookup, so that its result can be attached without a second search. The default
/// never matches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookup(pub(crate) u64);

/// All tickets compare equal, so that hits are equal if they found as much.
impl PartialEq for Lookup {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lookup {}

/// Capability: prefix caching (sharing of blocks by content).
pub trait Prefix {
    /// Looks up the longest cached prefix of `tokens`, at most all but the last token, whose logits
    /// are needed. `salt` isolates tenants. Allocates and evicts nothing, but counts as a use for
    /// the eviction order. Linear in the tokens found.
    fn lookup(&mut self, tokens: &[Token], salt: u64) -> Hit;
    /// Attaches the longest cached prefix of `tokens`, at most `limit` tokens, to `seq`, which must
    /// be empty (`CopyOverlaps`); its length is then the hit. If `lookup` is the newest lookup, of
    /// the same tokens, and nothing has changed since, its result is reused. Linear in the hit.
    fn attach(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        salt: u64,
        limit: u32,
        lookup: Lookup,
    ) -> Result<Hit, CacheError>;
    /// Publishes `seq`'s full blocks up to `computed` tokens, whose ids are `tokens`; the caller
    /// must pass the ids that were computed. Only retired rows are published, and only up to the
    /// first hole. Linear in the new blocks, or in all with a radix tree. It also refreshes the
    /// eviction order of what was published before, so call it when a sequence ends.
    fn publish(&mut self, seq: SeqId, tokens: &[Token], computed: u32) -> Result<(), CacheError>;
    /// Evicts at least `slots` slots of unreferenced cached blocks, or all of them; returns how
    /// many. Linear in those. Claims evict by themselves: only recorded cases call this verb.
    fn evict(&mut self, slots: u32) -> Result<u32, CacheError>;
}

/// Capability: draft trees for speculative decoding (tree attention): draft nodes are run first and
/// verified afterwards.
pub trait Tree {
    /// Declares the draft nodes that the next claim of `seq` runs. `parents[i]` is the node number
    /// of the parent, over all unsettled nodes of the sequence, or −1 for the committed prefix.
    /// Replaces a frontier that was not claimed yet; an empty one withdraws it. Fails with
    /// `BadParent`. Linear in the nodes.
    fn propose(&mut self, seq: SeqId, parents: &[i32]) -> Result<(), CacheError>;
    /// Commits the accepted chain (node numbers from a root on) after verification and drops all
    /// other nodes. The slot copies that this takes go out with the next plan; they are returned
    /// for inspection. Fails with `NotAChain`, and with `InFlight` until the nodes' steps have
    /// retired. Linear in the nodes.
    fn commit(&mut self, seq: SeqId, accepted: &[u32]) -> Result<&[SlotCopy], CacheError>;
    /// Number of claimed draft nodes not yet committed or dropped.
    fn unsettled(&self, seq: SeqId) -> Result<u32, CacheError>;
}

//! Capability traits: cache operations beyond those of a step.
//!
//! - Every cache has `Inspect`, `MemoryHints` and `Victims`: they are supertraits of `Cache`, apart
//!   from it because no step needs them.
//! - `Rewind`, `Sequences`, `Prefix` and `Tree` are optional. `Cache` hands them out by name; one
//!   that a cache lacks is refused (`CacheError::NoCapability`), so callers need not match on the
//!   cache kind.
//!
//! The rules on errors, ids and cost of `contract/cache.rs` hold here, too.

use crate::contract::cache_end::CacheEnd;
use crate::contract::error::CacheError;
use crate::contract::group::{Anchor, GroupId, Slots};
use crate::contract::ids::{BlockId, Position, SeqId, Token};
use crate::contract::kv_event::KvEvent;
use crate::contract::section::SlotCopy;
use crate::contract::usage::BlockUse;
use serde::{Deserialize, Serialize};

/// Inspection of the whole bookkeeping, for traces, drawings and tests.
pub trait Inspect {
    /// Writes the state of each block by id; ids past the end are free. May cost time linear in the
    /// high-water mark.
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>);
    /// Writes the state of each block of a layer group, as `visit_blocks` does for group 0. Blocks
    /// whose rows the cache may still publish are not `Free`. Writes none if the group has none.
    fn visit_blocks_of(&self, group: GroupId, blocks: &mut Vec<BlockUse>) {
        blocks.clear();
        if group == GroupId::FULL {
            self.visit_blocks(blocks);
        }
    }
    /// Appends the blocks of a sequence in order of position, preallocated ones included. Linear in
    /// them. In token-granular caches a block is one slot.
    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError>;
    /// Consistency check; reports the first violation. Linear in everything held.
    fn check(&self) -> Result<(), String>;
}

/// Hints on memory. No result of a step depends on them, and a cache may ignore each.
pub trait MemoryHints {
    /// Reserves host memory for up to `tokens`, so that later claims do not reallocate; allocates
    /// no slots. Ignores unknown sequences.
    fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        let _ = (seq, tokens);
    }
    /// Reserves host memory for plans of `rows` rows whose sequences own `blocks` blocks together.
    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        let _ = (blocks, rows);
    }
    /// Defragments: queues slot copies so that contiguous plans are possible again. Returns how
    /// many copies go out with the next plan. Fails with `InFlight` while a step is claimed. Linear
    /// in the slots in use.
    fn compact(&mut self) -> Result<u32, CacheError> {
        Ok(0)
    }
}

/// Selection of preemption or eviction victims.
pub trait Victims {
    /// Selects which candidates to close so that enough slots come free. Returns false, and no
    /// victims, if not even all of them suffice. Changes nothing; time linear in the block tables
    /// of the candidates.
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool;
    /// Slots per layer group that only these sequences own: closing all of them frees these slots
    /// once the steps in flight have retired. Time linear in their block tables.
    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots;
}

/// Input of [`Victims::victims`].
#[derive(Clone, Copy, Debug, Default)]
pub struct VictimSearch<'a> {
    /// Slots per layer group that must come free.
    pub slots: Slots,
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

/// Truncation of a sequence, as after rejected draft tokens.
pub trait Rewind {
    /// The greatest length up to `to` that [`Rewind::rewind_to`] accepts: `to` itself, or with
    /// recurrent states the position of the last state up to `to`. With window groups it is 0 if
    /// rows of a window that ends at that length were released. Fails with `RewindOutOfRange` if
    /// `to` is above the next position, or if ring buffers have overwritten rows below it.
    fn rewind_floor(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError>;
    /// Truncates to positions below `to`, claims in flight included. Fails like
    /// [`Rewind::rewind_floor`], with `NoCheckpoint` or `WindowReleased` if the rewind floor is
    /// below `to`, and with `Unsettled` if draft nodes were not committed. Linear in the blocks
    /// released. A claimed row that it cuts can only be canceled, or retired if it ran.
    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError>;
    /// Truncates a sequence that no request runs to at most `to`, and returns its length. With
    /// recurrent states, it ends at the last block boundary up to `to` that has a checkpoint, and
    /// holds no live state; a live state at such a boundary becomes a checkpoint. Without recurrent
    /// states, it ends at `to`. The length is 0 if rows of a window that ends there were released.
    /// Fails like [`Rewind::rewind_to`], but not with `NoCheckpoint` or `WindowReleased`.
    fn rewind_to_checkpoint(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        self.rewind_to(seq, to).map(|()| to)
    }
}

/// Forks, copies and removals of ranges (llama.cpp: `seq_cp`, `seq_rm`, `seq_keep`).
/// Copies K and V of partial blocks only; whole blocks are shared.
pub trait Sequences {
    /// Makes `dst` an owner of `src`'s retired rows with positions in `range`; claimed rows may yet
    /// be canceled. With recurrent states the copy ends at the last checkpoint in the range, so
    /// read the length of `dst` afterwards. With window groups, refused (`WindowReleased`) if rows
    /// of a window that ends at the end of `dst` were released. Refused if `dst` owns one of the
    /// positions (`CopyOverlaps`), holds rows of another fork family, or has steps or draft nodes
    /// in flight, if `src` has no retired rows (`NothingToCopy`), or if a partial block finds no
    /// slots (`Full`). Linear in the blocks.
    fn copy(&mut self, src: SeqId, dst: SeqId, range: std::ops::Range<Position>) -> Result<(), CacheError>;
    /// Removes the rows in `range` from `seq`; the remaining positions are never renumbered. A
    /// range that ends below the next position must be retired (`InFlight`) in block caches and
    /// with window groups, and is refused with recurrent states (`NoCheckpoint`). Linear in the
    /// blocks.
    fn remove(&mut self, seq: SeqId, range: std::ops::Range<Position>) -> Result<(), CacheError>;
    /// Closes every other sequence of `seq`'s fork family.
    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError>;
    /// Opens `n` sequences that share all retired rows of `seq` (copy-on-write): all, or none with
    /// an error (`TooManySequences`, `Full`). With recurrent states, all rows up to the last
    /// checkpoint. Linear in `n` times the blocks.
    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError>;
}

/// A prefix-cache hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// Leading tokens whose K and V are cached; whole blocks.
    pub tokens: u32,
    /// Slots of the hit per layer group that are unreferenced now: attaching takes them out of
    /// `PoolUsage::evictable`. 0 in the state group, where a claim takes the slots.
    pub evictable: Slots,
    /// Leading tokens with cached K and V in the layer group with the longest match, in whole
    /// blocks. Exceeds `tokens` if another group lacks data for some of them.
    #[serde(default)]
    pub matched: u32,
    /// Why `tokens` does not cover all whole blocks of the prompt without its last token. `None` if
    /// it does, or if only the `limit` of [`Prefix::attach`] shortens it.
    #[serde(default)]
    pub cache_end: Option<CacheEnd>,
    /// With [`CacheEnd::OtherKey`], a salt under which the next block is cached; else 0. Must not
    /// be disclosed to other tenants.
    #[serde(skip)]
    pub other_salt: u64,
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

/// Prefix caching (sharing of blocks by content).
pub trait Prefix {
    /// Looks up the longest cached prefix of `tokens`, at most all but the last token, whose logits
    /// are needed. `salt` isolates tenants. Allocates and evicts nothing, but counts as a use for
    /// the eviction order. Linear in the tokens found. `Hit::cache_end` is the reason of a hit that
    /// ends before the last whole block.
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
    /// Number of leading tokens of `seq` whose blocks are published.
    fn published(&self, seq: SeqId) -> Result<u32, CacheError>;
    /// Appends rows up to length `upto` to `seq` without a step, because their K and V were
    /// computed in another pool. The caller must write them to the slots of [`Inspect::blocks_of`]
    /// before it submits another step, and may publish them then. Errors: `BadClaim` if the length
    /// is not a multiple of the block size or not below `upto`, `InFlight` if a step in flight uses
    /// the sequence, `Unsettled` if it has draft nodes, `Full`, and `BadConfig` for a cache with a
    /// shared prefix. Linear in the blocks taken.
    fn import(&mut self, seq: SeqId, upto: u32) -> Result<(), CacheError>;
    /// Evicts at least `slots` slots of unreferenced cached blocks, or all of them; returns how
    /// many. Linear in those. Claims evict by themselves: only recorded cases call this verb.
    fn evict(&mut self, slots: u32) -> Result<u32, CacheError>;
    /// Clears the prefix cache and starts recording KV events. Fails with `BadConfig` if prefix
    /// caching is disabled, and for a cache with a shared prefix, whose tokens its block hashes do
    /// not cover.
    fn record_events(&mut self) -> Result<(), CacheError>;
    /// Appends the KV events since the last call to `into`, in order; none unless they are
    /// recorded.
    fn take_events(&mut self, into: &mut Vec<KvEvent>);
}

/// Anchors of published blocks, through which other layer groups find their data for the same
/// prefix. For caches with [`Prefix`].
pub trait Anchors {
    /// Appends the anchors of the blocks that the newest lookup matched, in order of position; none
    /// if the cache has changed since. Linear in the blocks.
    fn matched(&self, into: &mut Vec<Anchor>);
    /// The anchor of the block of `seq` with index `block`, if the block is published.
    fn anchor_of(&self, seq: SeqId, block: u32) -> Result<Option<Anchor>, CacheError>;
    /// The hash of the block of `seq` with index `block`, as in [`KvEvent`], if the block is
    /// published and KV events are recorded.
    fn hash_of(&self, seq: SeqId, block: u32) -> Result<Option<u64>, CacheError>;
    /// Starts recording the anchors that become invalid.
    fn record_unpublished(&mut self);
    /// Appends the anchors that became invalid since the last call. Their numbers may be used again
    /// for other content, so call this before any other use of anchors.
    fn take_unpublished(&mut self, into: &mut Vec<Anchor>);
}

/// Draft trees for speculative decoding (tree attention): draft nodes are run first and
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

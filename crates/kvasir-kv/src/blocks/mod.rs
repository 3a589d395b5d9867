//! `BlockCache`: the paged-attention block manager behind `--cache paged` and `--cache radix`.
//!
//! It maps a sequence's positions to blocks through a block table, counts references per block
//! (`Ledger`), and implements fork, copy-on-write, truncation, draft trees and plans. The
//! prefix-cache `Index` decides which block is allocated next and finds cached blocks by content;
//! it is all in which the two caches differ.
//!
//! States of a block: *free* → *used* (owned by sequences, or leased by a step in flight or a
//! pending slot copy) → *cached* (unreferenced, still findable, evictable) → free.
//!
//! Invariants:
//!
//! - A block that a step in flight names is not reused before that step retires, even if its owners
//!   have released it.
//! - A shared or published block is never written: a partly filled one is copied first
//!   (copy-on-write).
//! - Only full, retired blocks that are a function of the tokens before them are published.
//!
//! Builds on `contract` and `shared`; knows no other cache. Guarded by `tests/blocks`, the
//! model-based `tests/shadow`, `tests/prefix_model.rs` and `benches/blocks.rs`.

pub(crate) mod cache;
pub(crate) mod check;
pub(crate) mod claim;
pub(crate) mod companion_index;
pub(crate) mod event_log;
pub(crate) mod fork;
pub(crate) mod hash;
pub(crate) mod import;
pub(crate) mod index;
pub(crate) mod leased_copies;
pub(crate) mod ledger;
pub(crate) mod miss_history;
pub(crate) mod paged;
pub(crate) mod pending;
pub(crate) mod plan;
pub(crate) mod prefix;
pub(crate) mod queue;
pub(crate) mod radix;
pub(crate) mod rewind;
pub(crate) mod sequence;
pub(crate) mod size;
pub(crate) mod sliding_window;
pub(crate) mod table;
pub(crate) mod tree;
pub(crate) mod unpublished_anchors;
pub(crate) mod victims;

pub use crate::blocks::index::{Found, Index, Offer, Unpinned};
pub use crate::blocks::ledger::Ledger;
pub use crate::blocks::miss_history::{Miss, MissReason};
use crate::blocks::queue::BlockQueue;
pub use crate::blocks::queue::FreeOrder;

use crate::blocks::leased_copies::LeasedCopies;
use crate::blocks::sequence::{ClaimedRow, Replaced, Seq};
pub use crate::blocks::size::BlockSize;
use crate::contract::cache::CacheShape;
use crate::contract::capabilities::Hit;
use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, SeqId};
use crate::contract::section::SlotCopy;
use crate::shared::in_flight::InFlight;
use crate::shared::plan_writer::PlanWriter;
use crate::shared::sequence_table::SeqTable;
use crate::shared::victims::OwnerChanges;
use std::borrow::Cow;

/// Configuration of a block cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    /// Slots per block, 1 to 256.
    pub block_size: u32,
    /// Blocks it may allocate, the dummy not counted.
    pub blocks: u32,
    /// Maximum number of live sequences.
    pub max_sequences: u32,
    /// Whether prefix caching is on.
    pub sharing: bool,
    /// Whether block 0 is reserved as a dummy for redirected writes; allocation then begins with
    /// block 1.
    pub dummy: bool,
    /// Order in which `radix` allocates free blocks; `paged` allocates the lowest vacant one first.
    pub free_order: FreeOrder,
}

impl Default for BlockConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            blocks: 1024,
            max_sequences: 1 << 16,
            sharing: true,
            dummy: false,
            free_order: FreeOrder::Lowest,
        }
    }
}

impl BlockConfig {
    /// The ids of the blocks that may be allocated; an error for an invalid configuration.
    pub(crate) fn ids(&self) -> Result<std::ops::Range<BlockId>, CacheError> {
        if !(1..=256).contains(&self.block_size) {
            return Err(CacheError::BadConfig("the block size must be 1 to 256"));
        }
        if self.blocks == 0 {
            return Err(CacheError::BadConfig("the cache must have at least one block"));
        }
        let first = u32::from(self.dummy);
        let end = first.checked_add(self.blocks).filter(|end| end.checked_mul(self.block_size).is_some());
        Ok(first..end.ok_or(CacheError::BadConfig("the cache has more slots than a slot number can name"))?)
    }
}

/// The block manager over the prefix-cache index `I`.
#[derive(Clone, Debug)]
pub struct BlockCache<I> {
    shape: CacheShape,
    config: BlockConfig,
    size: BlockSize,
    /// Reference counts and the index.
    ledger: Ledger<I>,
    seqs: SeqTable<Seq>,
    /// Claimed steps; a deferred release is one lease of a block.
    inflight: InFlight<ClaimedRow, BlockId>,
    /// Shared last blocks that claims in flight replaced by private copies (copy-on-write).
    replaced: Vec<Replaced>,
    /// Slot copies for the next step.
    moves: LeasedCopies,
    /// See `Cache::generation`.
    generation: u64,
    /// Counts claims, refused ones included; marks the sequences of a claim to detect duplicates.
    marks: u64,
    /// Number of the newest fork family.
    families: u64,
    /// The blocks of the newest lookup; otherwise scratch memory.
    found: Vec<BlockId>,
    /// The newest lookup and its salt, while its blocks are in `found` and still valid for
    /// `attach`.
    looked_up: Option<(Hit, u64)>,
    /// Number of the newest lookup.
    lookups: u64,
    /// Scratch memory of claims and victim searches.
    records: Vec<ClaimedRow>,
    fresh: BlockQueue,
    /// Indices of the newest claim's rows whose tables grew in their heap part, for prefetch.
    heap_grows: Vec<usize>,
    rows: Vec<SlotCopy>,
    owner_changes: OwnerChanges,
    writer: PlanWriter,
}

impl<I: Index> BlockCache<I> {
    pub(crate) fn over(index: I, config: BlockConfig) -> Result<Self, CacheError> {
        let capacity = config.blocks * config.block_size;
        let dummy_slot = if config.dummy { 0 } else { capacity };
        Ok(Self {
            shape: CacheShape::blocks(I::KIND, capacity, config.block_size, dummy_slot),
            config,
            size: BlockSize::new(config.block_size),
            ledger: Ledger::new(index, config.ids()?.end),
            seqs: SeqTable::new(config.max_sequences),
            inflight: InFlight::default(),
            replaced: Vec::new(),
            moves: LeasedCopies::new(config.block_size),
            generation: 0,
            marks: 0,
            families: 0,
            found: Vec::new(),
            looked_up: None,
            lookups: 0,
            records: Vec::new(),
            fresh: BlockQueue::new(FreeOrder::Oldest),
            heap_grows: Vec::new(),
            rows: Vec::new(),
            owner_changes: OwnerChanges::default(),
            writer: PlanWriter::default(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &BlockConfig {
        &self.config
    }

    /// The block table of a sequence. `BlockId::MAX` stands where a removed range has freed a whole
    /// block.
    pub fn table(&self, seq: SeqId) -> Result<Cow<'_, [BlockId]>, CacheError> {
        Ok(self.seqs.get(seq)?.table.blocks().from(0))
    }

    /// The preallocated blocks of a sequence, the next to be used first.
    pub fn ahead(&self, seq: SeqId) -> Result<impl Iterator<Item = BlockId>, CacheError> {
        Ok(self.seqs.get(seq)?.ahead.iter().rev().copied())
    }

    /// Number of sequences that own a block.
    pub fn owners(&self, block: BlockId) -> u32 {
        self.ledger.uses(block).owners
    }

    /// The prefix-cache index and free list.
    pub fn index(&self) -> &I {
        &self.ledger.index
    }

    /// Number of leading blocks of a sequence that are published.
    pub fn published_blocks(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.seqs.get(seq)?.published)
    }

    /// Drops the prefix cache; live sequences keep their blocks.
    pub fn forget(&mut self) {
        self.looked_up = None;
        self.ledger.index.forget();
        self.seqs.values_mut().for_each(|seq| seq.published = 0);
    }

    /// Raises the generation and invalidates the newest lookup.
    pub(crate) fn changed(&mut self) {
        self.looked_up = None;
        self.generation += 1;
    }
}

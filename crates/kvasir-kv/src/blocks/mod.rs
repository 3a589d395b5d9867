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
//! Guarded by `tests/blocks`, the model-based `tests/shadow`, `tests/prefix_model.rs` and
//! `benches/blocks.rs`.

mod cache;
mod check;
mod claim;
mod claims;
mod index;
mod leased;
mod ledger;
mod plan;
mod prefix;
mod queue;
mod rewind;
mod runs;
mod seq;
mod sequences;
mod size;
mod table;
mod tree;
mod victims;

pub use index::{Found, Index, Offer, Unpinned};
pub use ledger::Ledger;
pub(crate) use queue::BlockQueue;
pub(crate) use runs::{common_prefix, indices, leading, runs};

use crate::kept::Identity;
use crate::victims::OwnerChanges;
use crate::{BlockId, CacheError, Hit, InFlight, RowMove, SeqTable};
use leased::LeasedMoves;
use seq::{ClaimedRow, Replaced, Seq};
pub use size::BlockSize;
use std::borrow::Cow;

/// How a block cache is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    /// Slots per block, 1 to 256.
    pub block_size: u32,
    /// Blocks it may hand out.
    pub blocks: u32,
    /// Sequences that may live at once.
    pub max_sequences: u32,
    /// Whether what one request leaves may be found by another.
    pub sharing: bool,
    /// Whether block 0 is kept as a dummy for redirected writes; the blocks handed out then begin with 1.
    pub dummy: bool,
}

impl Default for BlockConfig {
    fn default() -> Self {
        Self { block_size: 16, blocks: 1024, max_sequences: 1 << 16, sharing: true, dummy: false }
    }
}

impl BlockConfig {
    /// The ids of the blocks that may be handed out.
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

/// A cache that hands out blocks, over the index `I`.
#[derive(Clone, Debug)]
pub struct BlockCache<I> {
    config: BlockConfig,
    identity: Identity,
    size: BlockSize,
    ledger: Ledger<I>,
    seqs: SeqTable<Seq>,
    inflight: InFlight<ClaimedRow, BlockId>,
    /// What claims in flight put private blocks in the place of.
    replaced: Vec<Replaced>,
    moves: LeasedMoves,
    generation: u64,
    /// Counts claims and refused claims.
    marks: u64,
    /// Counts fork families.
    families: u64,
    /// Memory to reuse.
    found: Vec<BlockId>,
    /// What the newest lookup said, while its blocks are in `found` and the index names them for those tokens; and the salt.
    looked_up: Option<(Hit, u64)>,
    /// Counts lookups.
    lookups: u64,
    records: Vec<ClaimedRow>,
    fresh: BlockQueue,
    /// Of the newest claim, the rows whose tables grew where they lie far.
    far: Vec<usize>,
    rows: Vec<RowMove>,
    owner_changes: OwnerChanges,
}

impl<I: Index> BlockCache<I> {
    pub(crate) fn over(index: I, config: BlockConfig) -> Result<Self, CacheError> {
        Ok(Self {
            config,
            identity: Identity::default(),
            size: BlockSize::new(config.block_size),
            ledger: Ledger::new(index, config.ids()?.end),
            seqs: SeqTable::new(config.max_sequences),
            inflight: InFlight::default(),
            replaced: Vec::new(),
            moves: LeasedMoves::new(config.block_size),
            generation: 0,
            marks: 0,
            families: 0,
            found: Vec::new(),
            looked_up: None,
            lookups: 0,
            records: Vec::new(),
            fresh: BlockQueue::default(),
            far: Vec::new(),
            rows: Vec::new(),
            owner_changes: OwnerChanges::default(),
        })
    }

    /// How it was built.
    pub fn config(&self) -> &BlockConfig {
        &self.config
    }

    /// The blocks of a sequence, in order of position. Where a removed range has freed a whole block stands
    /// `BlockId::MAX`.
    pub fn table(&self, seq: crate::SeqId) -> Result<Cow<'_, [BlockId]>, CacheError> {
        Ok(self.seqs.get(seq)?.table.blocks().from(0))
    }

    /// The blocks that a sequence holds for claims to come, the next one first.
    pub fn ahead(&self, seq: crate::SeqId) -> Result<impl Iterator<Item = BlockId>, CacheError> {
        Ok(self.seqs.get(seq)?.ahead.iter().rev().copied())
    }

    /// How many sequences own a block.
    pub fn owners(&self, block: BlockId) -> u32 {
        self.ledger.uses(block).owners
    }

    /// The index: what can be found and what is handed out next.
    pub fn index(&self) -> &I {
        &self.ledger.index
    }

    pub(crate) fn index_mut(&mut self) -> &mut I {
        self.looked_up = None;
        &mut self.ledger.index
    }

    /// Leading blocks of a sequence that are published.
    pub fn published_blocks(&self, seq: crate::SeqId) -> Result<u32, CacheError> {
        Ok(self.seqs.get(seq)?.published)
    }

    /// Forgets everything that can be found by content; live sequences keep their blocks.
    pub fn forget(&mut self) {
        self.looked_up = None;
        self.ledger.index.forget();
        self.seqs.values_mut().for_each(|seq| seq.published = 0);
    }

    pub(crate) fn changed(&mut self) {
        self.looked_up = None;
        self.generation += 1;
    }
}

//! `Index`: the prefix-cache index of a block cache (find by content, publish, evict) together with
//! its free list.
//!
//! States of a block: *used* (referenced; only the `Ledger` counts that), *evictable* (unreferenced
//! but still findable, evictable), *free*. `HashIndex` (paged) and `RadixIndex` (radix) implement
//! it. An index must not know sequences, steps or reference counts.

use crate::blocks::miss_history::{Miss, MissReason};
use crate::blocks::unpublished_anchors::UnpublishedAnchors;
use crate::contract::group::Anchor;
use crate::contract::ids::{BlockId, Token};
use crate::contract::kind::CacheKind;
use crate::contract::kv_event::KvEvent;
use crate::shared::tail_buffered::TailBuffered;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::ops::Range;

/// A prefix-cache hit, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Leading blocks of the prompt that are cached.
    pub blocks: u32,
    /// How many of them are unreferenced (evictable) now.
    pub evictable: u32,
}

/// A sequence's blocks, offered for publishing.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Its block table from position 0; blocks that `tokens` fill are offered.
    pub table: &'a TailBuffered,
    /// The token ids in them.
    pub tokens: &'a [Token],
    /// Isolates tenants (cache salt).
    pub salt: u64,
    /// Leading blocks of `table` that were published before and may be skipped.
    pub from: u32,
}

/// Hypothetical unpins per group of blocks (radix node), as [`Index::unused`] counts them.
pub type Unpinned = HashMap<u32, u32, BuildHasherDefault<DefaultHasher>>;

/// The prefix-cache index of a block cache, with its free list: how cached blocks are found by
/// content, and which block is allocated next.
///
/// A block is *used* while a sequence owns it or a step in flight names it; the `Ledger` counts
/// that and reports the transitions. An unused block is *evictable* if it can still be found by
/// content, else *free*.
pub trait Index: Send {
    /// The kind of cache over this index.
    const KIND: CacheKind;
    /// Whether a sequence releases its blocks from the end, so that LRU eviction takes leaves
    /// first.
    const FROM_END: bool;

    /// Number of free blocks.
    fn free(&self) -> u32;
    /// Number of evictable blocks; a radix tree excludes unused blocks in pinned nodes.
    fn evictable(&self) -> u32;
    /// Allocates a block: a free one, or else an evicted one.
    fn take(&mut self) -> Option<BlockId>;
    /// Allocates up to `count` blocks; passes them to `each` in order, as ranges.
    fn take_all(&mut self, count: u32, mut each: impl FnMut(Range<BlockId>)) {
        (0..count).map_while(|_| self.take()).for_each(|block| each(block..block + 1));
    }
    /// Marks evictable blocks as used.
    fn hold_all(&mut self, blocks: Range<BlockId>) {
        blocks.for_each(|block| self.hold(block));
    }
    /// Marks an evictable block as used.
    fn hold(&mut self, block: BlockId);
    /// Releases a block: it becomes evictable if it is published, else free.
    fn release(&mut self, block: BlockId);
    /// Releases blocks, in this order.
    fn release_all(&mut self, blocks: Range<BlockId>) {
        blocks.for_each(|block| self.release(block));
    }
    /// For victim selection: how many more blocks would become available if this one were unused,
    /// given what `unpinned` counts already. Changes only `unpinned`.
    fn unused(&self, block: BlockId, unpinned: &mut Unpinned) -> u32 {
        let _ = (block, unpinned);
        1
    }
    /// Undoes [`Index::unused`]; returns the same.
    fn used_again(&self, block: BlockId, unpinned: &mut Unpinned) -> u32 {
        let _ = (block, unpinned);
        1
    }
    /// The anchor of a block, if it is published.
    fn anchor(&self, block: BlockId) -> Option<Anchor>;
    /// The chained hash of a block with its prefix, if it is published and KV events are recorded.
    fn block_hash(&self, block: BlockId) -> Option<u64>;
    /// The anchors whose content lookups no longer find.
    fn unpublished_anchors(&mut self) -> &mut UnpublishedAnchors;
    /// Whether a block is published, and so must not be written.
    fn is_published(&self, block: BlockId) -> bool;
    /// How many leading blocks of the range are not published.
    fn unpublished(&self, blocks: Range<BlockId>) -> u32 {
        blocks.take_while(|&block| !self.is_published(block)).count() as u32
    }
    /// Finds the longest cached prefix of `tokens` in whole blocks, at most `limit`; appends its
    /// blocks to `found`. Counts as a use for the eviction order.
    fn find(&mut self, tokens: &[Token], salt: u64, limit: u32, found: &mut Vec<BlockId>) -> Found;
    /// Why [`Index::find`] did not find the next block after a hit. Cost: hashes that block.
    fn explain(&mut self, miss: Miss<'_>) -> MissReason;
    /// Publishes blocks. Writes to `canonical` what the leading part of the table should be: where
    /// equal content was cached before, an index may name that block instead (deduplication).
    /// Returns how many leading blocks are findable now.
    fn publish(&mut self, offer: Offer<'_>, canonical: &mut Vec<BlockId>) -> u32;
    /// Evicts at least `blocks` blocks, or all; returns how many became free.
    fn evict(&mut self, blocks: u32) -> u32;
    /// Drops all published content; used blocks stay used.
    fn forget(&mut self);
    /// Starts recording KV events. The index must be empty.
    fn record_events(&mut self);
    /// Moves the recorded KV events to `into`.
    fn take_events(&mut self, into: &mut Vec<KvEvent>);
    /// Consistency check. `used` says whether the ledger counts a block as used.
    fn check(&self, used: &dyn Fn(BlockId) -> bool) -> Result<(), String>;
}

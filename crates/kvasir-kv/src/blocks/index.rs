//! `Index`: the prefix-cache index of a block cache (find by content, publish, evict) together with
//! its free list.
//!
//! States of a block: *used* (referenced; only the `Ledger` counts that), *idle* (unreferenced but
//! still findable, evictable), *free*. `HashIndex` (paged) and `RadixIndex` (radix) implement it.
//! An index must not know sequences, steps or reference counts.

use crate::{BlockId, CacheKind, LongList, Token};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::ops::Range;

/// What a prompt found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Leading blocks of the prompt that are there.
    pub blocks: u32,
    /// How many of them nobody uses now.
    pub idle: u32,
}

/// A sequence's blocks, offered for sharing.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Its blocks from position 0 on; those that `tokens` fill are offered.
    pub table: &'a LongList,
    /// The tokens in them.
    pub tokens: &'a [Token],
    /// Keeps tenants apart.
    pub salt: u64,
    /// Leading blocks of `table` that need not be looked at: they were published before.
    pub from: u32,
}

/// Pins that groups of blocks would lose, by the number of the group: what [`Index::unused`] counts
/// in.
pub type Unpinned = HashMap<u32, u32, BuildHasherDefault<DefaultHasher>>;

/// How blocks are found again by content, and which one is handed out next: what `paged` and `radix` differ in.
///
/// A block is *used* while a sequence owns it or a step in flight names it; the [`Ledger`](super::Ledger) counts that and
/// says when it begins and ends. A block that is not used is *idle* if it can still be found, else *free*.
pub trait Index: Send {
    /// The cache that it makes.
    const KIND: CacheKind;
    /// Whether a sequence lets go of its blocks from its end.
    const FROM_END: bool;

    /// Blocks that hold nothing.
    fn free(&self) -> u32;
    /// Blocks that nobody uses and that can be handed out after being forgotten.
    fn idle(&self) -> u32;
    /// Hands out a block, which is used from now on: a free one, or else an idle one that is forgotten.
    fn take(&mut self) -> Option<BlockId>;
    /// Hands out `count` blocks, as far as there are so many; `each` is told of them in order.
    fn take_all(&mut self, count: u32, mut each: impl FnMut(Range<BlockId>)) {
        (0..count).map_while(|_| self.take()).for_each(|block| each(block..block + 1));
    }
    /// Idle blocks are used again.
    fn hold_all(&mut self, blocks: Range<BlockId>) {
        blocks.for_each(|block| self.hold(block));
    }
    /// An idle block is used again.
    fn hold(&mut self, block: BlockId);
    /// A block is no longer used.
    fn let_go(&mut self, block: BlockId);
    /// Blocks are no longer used, in this order.
    fn let_go_all(&mut self, blocks: Range<BlockId>) {
        blocks.for_each(|block| self.let_go(block));
    }
    /// How many blocks could be handed out if this one were no longer used, beside those that
    /// `unpinned` counts already. Changes nothing but that.
    fn unused(&self, block: BlockId, unpinned: &mut Unpinned) -> u32 {
        let _ = (block, unpinned);
        1
    }
    /// Undoes [`Index::unused`], and says the same.
    fn used_again(&self, block: BlockId, unpinned: &mut Unpinned) -> u32 {
        let _ = (block, unpinned);
        1
    }
    /// Whether a block can be found by content, and so must not be written.
    fn is_published(&self, block: BlockId) -> bool;
    /// How many leading ones of `blocks` cannot be found by content.
    fn unpublished(&self, blocks: Range<BlockId>) -> u32 {
        blocks.take_while(|&block| !self.is_published(block)).count() as u32
    }
    /// Appends the blocks that hold the leading whole blocks of `tokens`, at most `limit` of them, to `found`.
    fn find(&mut self, tokens: &[Token], salt: u64, limit: u32, found: &mut Vec<BlockId>) -> Found;
    /// Makes blocks findable. Writes to `canonical` what the whole table should be from now on: where the same content was
    /// there before, an index may name that block instead. Returns how many leading blocks are findable now.
    fn publish(&mut self, offer: Offer<'_>, canonical: &mut Vec<BlockId>) -> u32;
    /// Forgets at least `blocks` idle blocks, or all; returns how many became free.
    fn evict(&mut self, blocks: u32) -> u32;
    /// Forgets everything that can be found; blocks that are used stay so.
    fn forget(&mut self);
    /// Walks the whole index. `used` says whether the ledger counts a block as used.
    fn check(&self, used: &dyn Fn(BlockId) -> bool) -> Result<(), String>;
}

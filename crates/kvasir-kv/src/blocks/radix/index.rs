//! `RadixIndex`: the prefix-cache index of `radix`: published pages in a `RadixTree`, all others
//! used or in the free list, by default the lowest first.
//!
//! Each used page pins its node (SGLang's `lock_ref`); nodes without pins are evicted leaf first.
//! Duplicate content is published once: `publish` returns the canonical pages and the cache
//! releases its own copies. A page is in at most one node.

use crate::blocks::BlockConfig;
use crate::blocks::index::{Found, Index, Offer, Unpinned};
use crate::blocks::miss_history::{Miss, MissHistory, MissReason, NewBlock};
use crate::blocks::queue::BlockQueue;
use crate::blocks::radix::page_nodes::PageNodes;
use crate::blocks::radix::tree::{NodeId, RadixTree, Reached};
use crate::blocks::size::BlockSize;
use crate::blocks::unpublished_anchors::UnpublishedAnchors;
use crate::contract::error::CacheError;
use crate::contract::group::Anchor;
use crate::contract::ids::{BlockId, Token};
use crate::contract::kind::CacheKind;
use crate::contract::kv_event::KvEvent;
use crate::shared::runs::{indices, runs};
use std::ops::Range;

/// Published pages in a [`RadixTree`], free ones in a list. A used page pins its node.
#[derive(Clone, Debug)]
pub struct RadixIndex {
    page: u32,
    size: BlockSize,
    tree: RadixTree,
    /// Node of each published page.
    page_nodes: PageNodes,
    /// Whether each page is used (referenced).
    used: Vec<bool>,
    free: BlockQueue,
    /// Scratch memory.
    pages: Vec<BlockId>,
    /// Anchors of pages that left the tree.
    unpublished: UnpublishedAnchors,
    history: MissHistory,
}

impl RadixIndex {
    /// An index over the pages of a cache, all of them free.
    pub fn new(config: &BlockConfig) -> Result<Self, CacheError> {
        let ids = config.ids()?;
        let bound = ids.end as usize;
        let mut free = BlockQueue::new(config.free_order);
        free.push(ids);
        Ok(Self {
            page: config.block_size,
            size: BlockSize::new(config.block_size),
            tree: RadixTree::new(config.block_size),
            page_nodes: PageNodes::new(bound),
            used: vec![false; bound],
            free,
            pages: Vec::new(),
            unpublished: UnpublishedAnchors::default(),
            history: MissHistory::new(if config.sharing { bound } else { 0 }),
        })
    }

    /// The tree.
    pub fn tree(&self) -> &RadixTree {
        &self.tree
    }

    /// The free pages, in allocation order.
    pub fn free_pages(&self) -> impl Iterator<Item = BlockId> {
        self.free.iter()
    }

    /// Matches `tokens`, splitting a node that matches in part; the used pages' pins move along.
    fn walk(&mut self, root: NodeId, tokens: &[Token], found: &mut Vec<BlockId>) -> Reached {
        let Self { tree, page_nodes, used, .. } = self;
        let pins = |of: &[BlockId]| of.iter().filter(|&&page| used[page as usize]).count() as u32;
        let reached = tree.walk(root, tokens, pins, found);
        if let Some(lower) = reached.split {
            page_nodes.split([reached.node, lower].map(|node| (node, tree.pages(node))));
        }
        reached
    }
}

impl RadixIndex {
    /// Releases pages of one node (unpin) or of none (free).
    fn release_from_node(&mut self, node: Option<NodeId>, pages: Range<BlockId>) {
        match node {
            None => self.free.push(pages),
            Some(node) => _ = self.tree.unpin(node, pages.len() as u32),
        }
    }
}

/// The anchor of a page is its number: only one page of the tree holds a content.
fn anchor_of(page: BlockId) -> Anchor {
    Anchor(u64::from(page))
}

impl Index for RadixIndex {
    const KIND: CacheKind = CacheKind::Radix;
    // With `FreeOrder::Oldest` pages are allocated in the order of their release, so a sequence's
    // pages are released in its order.
    const FROM_END: bool = false;

    fn free(&self) -> u32 {
        self.free.len()
    }

    fn evictable(&self) -> u32 {
        self.size.of(self.tree.evictable())
    }

    fn take(&mut self) -> Option<BlockId> {
        if self.free.len() == 0 {
            self.evict(1);
        }
        let page = self.free.pop()?;
        self.used[page as usize] = true;
        Some(page)
    }

    fn take_all(&mut self, count: u32, mut each: impl FnMut(Range<BlockId>)) {
        if self.free.len() < count {
            self.evict(count - self.free.len());
        }
        let mut left = count;
        while let Some(pages) = self.free.pop_range(left) {
            left -= pages.len() as u32;
            self.used[indices(&pages)].fill(true);
            each(pages);
        }
    }

    fn hold_all(&mut self, blocks: Range<BlockId>) {
        self.used[indices(&blocks)].fill(true);
        let mut rest = blocks;
        while let Some((node, pages)) = self.page_nodes.next_alike(&mut rest) {
            // Pages of one node are pinned together.
            node.into_iter().for_each(|node| self.tree.pin(node, pages.len() as u32));
        }
    }

    fn hold(&mut self, block: BlockId) {
        self.used[block as usize] = true;
        self.page_nodes.node(block).into_iter().for_each(|node| self.tree.pin(node, 1));
    }

    fn release(&mut self, block: BlockId) {
        self.used[block as usize] = false;
        self.release_from_node(self.page_nodes.node(block), block..block + 1);
    }

    fn release_all(&mut self, blocks: Range<BlockId>) {
        self.used[indices(&blocks)].fill(false);
        let mut rest = blocks;
        while let Some((node, pages)) = self.page_nodes.next_alike(&mut rest) {
            self.release_from_node(node, pages);
        }
    }

    fn unused(&self, block: BlockId, unpinned: &mut Unpinned) -> u32 {
        self.page_nodes.node(block).map_or(1, |node| self.tree.count_unpin(node, unpinned))
    }

    fn used_again(&self, block: BlockId, unpinned: &mut Unpinned) -> u32 {
        self.page_nodes.node(block).map_or(1, |node| self.tree.count_pin(node, unpinned))
    }

    fn anchor(&self, block: BlockId) -> Option<Anchor> {
        self.is_published(block).then(|| anchor_of(block))
    }

    fn block_hash(&self, block: BlockId) -> Option<u64> {
        self.tree.page_hash(self.page_nodes.node(block)?, block)
    }

    fn unpublished_anchors(&mut self) -> &mut UnpublishedAnchors {
        &mut self.unpublished
    }

    fn is_published(&self, block: BlockId) -> bool {
        self.page_nodes.node(block).is_some()
    }

    fn unpublished(&self, blocks: Range<BlockId>) -> u32 {
        self.page_nodes.outside_of(&blocks)
    }

    fn find(&mut self, tokens: &[Token], salt: u64, limit: u32, found: &mut Vec<BlockId>) -> Found {
        let most = (limit as usize).saturating_mul(self.page as usize).min(tokens.len());
        let Some(root) = self.tree.find_root(salt) else { return Found::default() };
        let reached = self.walk(root, &tokens[..most], found);
        Found { blocks: reached.tokens / self.page, evictable: reached.evictable / self.page }
    }

    fn explain(&mut self, miss: Miss<'_>) -> MissReason {
        // Leaves are evicted first, so lookups reach every page of the tree.
        self.history.explain(miss, || false)
    }

    fn publish(&mut self, offer: Offer<'_>, canonical: &mut Vec<BlockId>) -> u32 {
        let root = self.tree.root(offer.salt);
        let reached = self.walk(root, offer.tokens, canonical);
        let there = canonical.len();
        // A page is in the tree at most once. One that is there under other tokens was published
        // with tokens that were not its own; publishing stops before it.
        self.pages.clear();
        offer.table.copy(there as u32..offer.tokens.len() as u32 / self.page, &mut self.pages);
        let fresh = self.page_nodes.outside(&self.pages);
        let pages = &self.pages[..fresh];
        let at = there * self.page as usize..(there + fresh) * self.page as usize;
        let Some(leaf) = self.tree.add_leaf(reached.node, &offer.tokens[at.clone()], pages) else {
            self.tree.drop_bare_root(offer.salt);
            return there as u32;
        };
        self.page_nodes.put(leaf, pages);
        let mut parent = canonical.last().copied();
        for (&block, tokens) in pages.iter().zip(offer.tokens[at].chunks_exact(self.page as usize)) {
            self.history.on_publish(NewBlock { block, parent, salt: offer.salt, tokens });
            parent = Some(block);
        }
        let used = |run| self.used[indices(&run)].iter().map(|&used| u32::from(used)).sum::<u32>();
        self.tree.pin(leaf, runs(pages).map(used).sum());
        (there + fresh) as u32
    }

    fn evict(&mut self, blocks: u32) -> u32 {
        let mut evicted = 0;
        while evicted < blocks {
            self.pages.clear();
            if self.tree.evict_leaf(&mut self.pages).is_none() {
                break;
            }
            self.page_nodes.remove(&self.pages);
            self.pages.iter().for_each(|&page| self.history.on_evict(page));
            self.unpublished.extend(self.pages.iter().map(|&page| anchor_of(page)));
            runs(&self.pages).for_each(|run| self.free.push(run));
            evicted += self.pages.len() as u32;
        }
        evicted
    }

    fn forget(&mut self) {
        self.tree.clear();
        self.history.on_forget();
        self.page_nodes.clear(|page| {
            self.unpublished.extend([anchor_of(page)]);
            if !self.used[page as usize] {
                self.free.push(page..page + 1);
            }
        });
    }

    fn record_events(&mut self) {
        self.tree.record_events();
    }

    fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        self.tree.take_events(into);
    }

    fn check(&self, used: &dyn Fn(BlockId) -> bool) -> Result<(), String> {
        let mut is_free = vec![false; self.used.len()];
        for page in self.free.iter() {
            if std::mem::replace(&mut is_free[page as usize], true) {
                return Err(format!("page {page} is free twice"));
            }
        }
        let in_tree = |id: usize| self.page_nodes.node(id as BlockId).is_some();
        let first = usize::from(!is_free[0] && !self.used[0] && !in_tree(0));
        for (id, &is_used) in self.used.iter().enumerate().skip(first) {
            if is_used != used(id as BlockId) {
                return Err(format!("page {id} is used: {}, its index says {is_used}", !is_used));
            }
            if is_free[id] == (is_used || in_tree(id)) {
                return Err(format!("page {id} is neither free nor anywhere else, or both"));
            }
            if let Some(node) = self.page_nodes.node(id as BlockId)
                && !self.tree.pages(node).contains(&(id as BlockId))
            {
                return Err(format!("page {id} is not in its node {node}"));
            }
        }
        let count = (0..self.used.len()).filter(|&id| in_tree(id)).count() as u32;
        if count * self.page != self.tree.evictable() + self.tree.protected() {
            return Err(format!("{count} pages are in the tree, which counts otherwise"));
        }
        let pins = |_, of: &[BlockId]| of.iter().filter(|&&page| self.used[page as usize]).count() as u32;
        self.tree.check(pins)
    }
}

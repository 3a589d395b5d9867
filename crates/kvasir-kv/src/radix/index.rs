use super::tree::{NodeId, RadixTree, Reached};
use crate::blocks::{BlockConfig, Found, Index, Offer};
use crate::{BlockId, CacheError, CacheKind, Token};
use std::collections::VecDeque;

const NONE: NodeId = NodeId::MAX;

/// What the index knows of one page.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Its node in the tree.
    node: NodeId,
    used: bool,
}

/// The index of `radix`: published pages in a [`RadixTree`], and the rest in a queue of free ones. A page that is used
/// pins its node.
#[derive(Clone, Debug)]
pub struct RadixIndex {
    page: u32,
    tree: RadixTree,
    pages: Vec<Page>,
    free: VecDeque<BlockId>,
}

impl RadixIndex {
    /// An index over the pages of a cache, all of them free.
    pub fn new(config: &BlockConfig) -> Result<Self, CacheError> {
        let ids = config.ids()?;
        Ok(Self {
            page: config.block_size,
            tree: RadixTree::new(config.block_size),
            pages: vec![Page { node: NONE, used: false }; ids.end as usize],
            free: ids.collect(),
        })
    }

    /// The tree.
    pub fn tree(&self) -> &RadixTree {
        &self.tree
    }

    /// The free pages, the next to be handed out first.
    pub fn free_pages(&self) -> impl Iterator<Item = BlockId> {
        self.free.iter().copied()
    }

    fn pin(&mut self, node: NodeId, pins: u32) {
        if node != NONE {
            self.tree.pin(node, pins);
        }
    }

    fn walk(&mut self, root: NodeId, tokens: &[Token], found: &mut Vec<BlockId>) -> Reached {
        let Self { tree, pages, .. } = self;
        let used = |of: &[BlockId]| of.iter().filter(|&&page| pages[page as usize].used).count() as u32;
        let reached = tree.walk(root, tokens, used, found);
        if let Some(upper) = reached.split {
            tree.pages(upper).iter().for_each(|&page| pages[page as usize].node = upper);
        }
        reached
    }
}

impl Index for RadixIndex {
    const KIND: CacheKind = CacheKind::Radix;
    // Free pages are handed out in the order in which they came back; a sequence's come back in its order.
    const FROM_END: bool = false;

    fn free(&self) -> u32 {
        self.free.len() as u32
    }

    fn idle(&self) -> u32 {
        self.tree.evictable() / self.page
    }

    fn take(&mut self) -> Option<BlockId> {
        if self.free.is_empty() {
            self.evict(1);
        }
        let page = self.free.pop_front()?;
        self.pages[page as usize].used = true;
        Some(page)
    }

    fn take_all(&mut self, count: u32, table: &mut Vec<BlockId>) {
        if self.free() < count {
            self.evict(count - self.free());
        }
        let first = table.len();
        let count = (count as usize).min(self.free.len());
        let (front, back) = self.free.as_slices();
        let whole = count.min(front.len());
        table.extend_from_slice(&front[..whole]);
        table.extend_from_slice(&back[..count - whole]);
        self.free.drain(..count);
        table[first..].iter().for_each(|&page| self.pages[page as usize].used = true);
    }

    fn hold_all(&mut self, blocks: impl Iterator<Item = BlockId>) {
        // Pages of one node follow each other, and are pinned together.
        let (mut node, mut pins) = (NONE, 0);
        for block in blocks {
            let page = &mut self.pages[block as usize];
            page.used = true;
            let of = page.node;
            if of != node {
                self.pin(node, pins);
                (node, pins) = (of, 0);
            }
            pins += 1;
        }
        self.pin(node, pins);
    }

    fn hold(&mut self, block: BlockId) {
        self.hold_all(std::iter::once(block));
    }

    fn let_go(&mut self, block: BlockId) {
        let page = &mut self.pages[block as usize];
        page.used = false;
        match page.node {
            NONE => self.free.push_back(block),
            node => {
                self.tree.unpin(node, 1);
            }
        }
    }

    fn is_published(&self, block: BlockId) -> bool {
        self.pages.get(block as usize).is_some_and(|page| page.node != NONE)
    }

    fn find(&mut self, tokens: &[Token], salt: u64, limit: u32, found: &mut Vec<BlockId>) -> Found {
        let most = (limit as usize).saturating_mul(self.page as usize).min(tokens.len());
        let Some(root) = self.tree.find_root(salt) else { return Found::default() };
        let reached = self.walk(root, &tokens[..most], found);
        Found { blocks: reached.tokens / self.page, idle: reached.idle / self.page }
    }

    fn publish(&mut self, offer: Offer<'_>, canonical: &mut Vec<BlockId>) -> u32 {
        let root = self.tree.root(offer.salt);
        let reached = self.walk(root, offer.tokens, canonical);
        let there = canonical.len();
        // A page is in the tree once. One that is there under other tokens was published with tokens that were not its own.
        let fresh =
            offer.table[there..].iter().take_while(|&&page| self.pages[page as usize].node == NONE).count();
        let pages = &offer.table[there..there + fresh];
        let at = there * self.page as usize..(there + fresh) * self.page as usize;
        let Some(leaf) = self.tree.add_leaf(reached.node, &offer.tokens[at], pages) else {
            self.tree.drop_bare_root(offer.salt);
            return there as u32;
        };
        let mut pins = 0;
        for &page in pages {
            let page = &mut self.pages[page as usize];
            page.node = leaf;
            pins += u32::from(page.used);
        }
        self.tree.pin(leaf, pins);
        (there + fresh) as u32
    }

    fn evict(&mut self, blocks: u32) -> u32 {
        let mut evicted = 0;
        while evicted < blocks {
            let before = self.free.len();
            if self.tree.evict_leaf(&mut self.free).is_none() {
                break;
            }
            for &page in self.free.range(before..) {
                self.pages[page as usize].node = NONE;
            }
            evicted += (self.free.len() - before) as u32;
        }
        evicted
    }

    fn forget(&mut self) {
        self.tree = RadixTree::new(self.page);
        for (id, page) in self.pages.iter_mut().enumerate() {
            let was_there = std::mem::replace(&mut page.node, NONE) != NONE;
            if was_there && !page.used {
                self.free.push_back(id as BlockId);
            }
        }
    }

    fn check(&self, used: &dyn Fn(BlockId) -> bool) -> Result<(), String> {
        let mut is_free = vec![false; self.pages.len()];
        for &page in &self.free {
            if std::mem::replace(&mut is_free[page as usize], true) {
                return Err(format!("page {page} is free twice"));
            }
        }
        let first = usize::from(!is_free[0] && !self.pages[0].used && self.pages[0].node == NONE);
        for (id, page) in self.pages.iter().enumerate().skip(first) {
            if page.used != used(id as BlockId) {
                return Err(format!("page {id} is used: {}, its index says {}", !page.used, page.used));
            }
            if is_free[id] == (page.used || page.node != NONE) {
                return Err(format!("page {id} is neither free nor anywhere else, or both: {page:?}"));
            }
        }
        let in_tree = self.pages.iter().filter(|page| page.node != NONE).count() as u32;
        if in_tree * self.page != self.tree.evictable() + self.tree.protected() {
            return Err(format!("{in_tree} pages are in the tree, which counts otherwise"));
        }
        for (id, page) in self.pages.iter().enumerate() {
            if page.node != NONE && !self.tree.pages(page.node).contains(&(id as BlockId)) {
                return Err(format!("page {id} is not in its node {}", page.node));
            }
        }
        let count =
            |_, of: &[BlockId]| of.iter().filter(|&&page| self.pages[page as usize].used).count() as u32;
        self.tree.check(count)
    }
}

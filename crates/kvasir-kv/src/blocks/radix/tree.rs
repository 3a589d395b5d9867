//! `RadixTree`: a radix tree over token ids in whole pages, with pins and LRU eviction of leaves.
//!
//! - Edges are found by (parent, hash of the edge's first page) and verified by comparing tokens. A
//!   second edge with an equal hash is not added.
//! - `walk` matches as far as possible and splits a node that matches in part; it counts as a use
//!   of what matches whole.
//! - `pin` and `unpin` propagate to the parent only when a node's count leaves or reaches zero, so
//!   a pinned node has pinned ancestors.
//! - `evictable + protected` = tokens in the tree. Exactly the leaves without pins are in the
//!   eviction heap.
//! - Each tenant (salt) has a root; all but tenant 0's are dropped when bare.
//!
//! `events.rs`: KV events of the tree. `check.rs`: a consistency check that recounts everything.
//!
//! Guarded by `tests/radix_model.rs` against a naive tree.

mod check;
mod events;

use crate::blocks::event_log::EventLog;
use crate::blocks::index::Unpinned;
use crate::blocks::radix::lru_heap::LruHeap;
use crate::contract::ids::{BlockId, Token};
use crate::shared::eviction_order::EvictionOrder;
use crate::shared::runs::common_prefix;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use xxhash_rust::xxh64::xxh64;

/// A node of a [`RadixTree`].
pub type NodeId = u32;

const NONE: NodeId = NodeId::MAX;

#[derive(Clone, Debug)]
struct Node {
    /// Tokens on the edge to it, in whole pages.
    key: Vec<Token>,
    /// Pages that hold their K and V.
    pages: Vec<BlockId>,
    parent: NodeId,
    /// Hash of the first page of `key`, the edge's key in the parent; for a root, the salt.
    edge: u64,
    children: u32,
    /// Pins of its own pages, plus one per pinned child.
    pins: u32,
    /// Logical time of its last use (LRU).
    used_at: u64,
    /// Block hashes of its pages; empty unless KV events are recorded.
    hashes: Vec<u64>,
}

/// Result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The deepest node that matches.
    pub node: NodeId,
    /// Tokens from the root to it.
    pub tokens: u32,
    /// How many of them lie in unpinned (evictable) nodes.
    pub evictable: u32,
    /// The lower part of a node that was split: it keeps the id and the unmatched tokens; `node` is
    /// the new upper part.
    pub split: Option<NodeId>,
}

/// A radix tree over token ids, in whole pages.
///
/// A node is *pinned* while it or a node below it is in use. Leaves without pins are evictable,
/// least recently used first. `protected` (pinned) plus `evictable` tokens is the size of the tree.
#[derive(Clone, Debug)]
pub struct RadixTree {
    page: usize,
    nodes: Vec<Node>,
    /// Unused node ids.
    spare: Vec<NodeId>,
    /// Children by (parent, hash of their first page).
    edges: HashMap<(NodeId, u64), NodeId, BuildHasherDefault<DefaultHasher>>,
    /// The root of each tenant.
    roots: HashMap<u64, NodeId, BuildHasherDefault<DefaultHasher>>,
    /// Evictable leaves by last use.
    leaves: LruHeap,
    /// Logical time: counts walks and added leaves.
    clock: u64,
    evictable: u32,
    protected: u32,
    /// The log of KV events, if they are recorded.
    log: Option<Box<EventLog>>,
}

impl RadixTree {
    /// An empty tree over pages of `page` tokens.
    pub fn new(page: u32) -> Self {
        let mut tree = Self {
            page: page.max(1) as usize,
            nodes: Vec::new(),
            spare: Vec::new(),
            edges: HashMap::default(),
            roots: HashMap::default(),
            leaves: LruHeap::default(),
            clock: 0,
            evictable: 0,
            protected: 0,
            log: None,
        };
        tree.root(0);
        tree
    }

    /// Tokens in unpinned nodes.
    pub fn evictable(&self) -> u32 {
        self.evictable
    }

    /// Tokens in pinned nodes.
    pub fn protected(&self) -> u32 {
        self.protected
    }

    /// Number of nodes, roots not counted.
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.spare.len() - self.roots.len()
    }

    /// The root of a tenant, if it has cached content. Tenant 0 always has one.
    pub fn find_root(&self, salt: u64) -> Option<NodeId> {
        self.roots.get(&salt).copied()
    }

    /// The root of a tenant, created on demand. A bare root stays until a leaf has come and gone,
    /// or until [`RadixTree::drop_bare_root`].
    pub fn root(&mut self, salt: u64) -> NodeId {
        if let Some(&root) = self.roots.get(&salt) {
            return root;
        }
        let root = self.add(Node {
            key: Vec::new(),
            pages: Vec::new(),
            parent: NONE,
            edge: salt,
            children: 0,
            pins: 0,
            used_at: 0,
            hashes: Vec::new(),
        });
        self.roots.insert(salt, root);
        root
    }

    /// Drops a tenant's root if it has no children and no pins.
    pub fn drop_bare_root(&mut self, salt: u64) {
        if let Some(&root) = self.roots.get(&salt) {
            self.offer(root);
        }
    }

    /// The parent node.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        Some(self.nodes[node as usize].parent).filter(|&parent| parent != NONE)
    }

    /// The tokens on the edge to a node.
    pub fn key(&self, node: NodeId) -> &[Token] {
        &self.nodes[node as usize].key
    }

    /// The pages of a node.
    pub fn pages(&self, node: NodeId) -> &[BlockId] {
        &self.nodes[node as usize].pages
    }

    /// The children of a node, sorted by key. Scans all edges; for inspection.
    pub fn children(&self, node: NodeId) -> Vec<NodeId> {
        let below = self.edges.iter().filter(|((parent, _), _)| *parent == node);
        let mut below: Vec<NodeId> = below.map(|(_, &child)| child).collect();
        below.sort_by(|&a, &b| self.key(a).cmp(self.key(b)));
        below
    }

    /// Logical time of a node's last use.
    pub fn used_at(&self, node: NodeId) -> u64 {
        self.nodes[node as usize].used_at
    }

    /// Whether a node or one below it is in use.
    pub fn is_pinned(&self, node: NodeId) -> bool {
        self.nodes[node as usize].pins > 0
    }

    /// Matches `tokens` from `root` as far as possible in whole pages; appends the matched pages.
    /// Nodes that match whole count as used now; one that matches in part is split. `held` counts
    /// the pins that belong to given pages of a node; they move along in a split.
    pub fn walk(
        &mut self,
        root: NodeId,
        tokens: &[Token],
        held: impl Fn(&[BlockId]) -> u32,
        pages: &mut Vec<BlockId>,
    ) -> Reached {
        self.clock += 1;
        let mut reached = Reached { node: root, tokens: 0, evictable: 0, split: None };
        let mut rest = tokens;
        while let Some((child, common)) = self.child(reached.node, rest) {
            let mut child = child;
            if common < self.nodes[child as usize].key.len() {
                reached.split = Some(child);
                child = self.split(child, common, &held);
            } else {
                self.nodes[child as usize].used_at = self.clock;
                self.leaves.touch(child, self.clock);
            }
            let node = &self.nodes[child as usize];
            pages.extend_from_slice(&node.pages);
            reached.node = child;
            reached.tokens += common as u32;
            reached.evictable += if node.pins == 0 { common as u32 } else { 0 };
            if reached.split.is_some() {
                break;
            }
            rest = &rest[common..];
        }
        reached
    }

    /// Adds a leaf under `parent` with `tokens` (whole pages). `None` if there is nothing to add,
    /// or if another child has the same first-page hash (a collision).
    pub fn add_leaf(&mut self, parent: NodeId, tokens: &[Token], pages: &[BlockId]) -> Option<NodeId> {
        let first = tokens.get(..self.page)?;
        let edge = hash_page(first);
        if self.edges.contains_key(&(parent, edge)) {
            return None;
        }
        self.clock += 1;
        let used_at = self.clock;
        let hashes = self.log_stored(parent, tokens);
        let leaf = self.add(Node {
            key: tokens.to_vec(),
            pages: pages.to_vec(),
            parent,
            edge,
            children: 0,
            pins: 0,
            used_at,
            hashes,
        });
        self.edges.insert((parent, edge), leaf);
        self.nodes[parent as usize].children += 1;
        self.leaves.on_use(parent);
        self.leaves.on_release(leaf, used_at);
        self.evictable += tokens.len() as u32;
        Some(leaf)
    }

    /// Adds `count` pins to a node; a first pin also pins its parent once.
    pub fn pin(&mut self, node: NodeId, count: u32) {
        let (mut at, mut count) = (node, count);
        while count > 0 {
            let node = &mut self.nodes[at as usize];
            node.pins += count;
            if node.pins > count {
                return;
            }
            let len = node.key.len() as u32;
            let parent = node.parent;
            self.evictable -= len;
            self.protected += len;
            self.leaves.on_use(at);
            if parent == NONE {
                return;
            }
            (at, count) = (parent, 1);
        }
    }

    /// Removes `count` pins of a node; the last also unpins its parent once. False, with nothing
    /// changed, if it has fewer.
    pub fn unpin(&mut self, node: NodeId, count: u32) -> bool {
        if self.nodes[node as usize].pins < count {
            return false;
        }
        let (mut at, mut count) = (node, count);
        while count > 0 {
            let node = &mut self.nodes[at as usize];
            node.pins -= count;
            if node.pins > 0 {
                break;
            }
            let len = node.key.len() as u32;
            let parent = node.parent;
            self.protected -= len;
            self.evictable += len;
            self.offer(at);
            if parent == NONE {
                break;
            }
            (at, count) = (parent, 1);
        }
        true
    }

    /// For victim selection: counts one hypothetical unpin of a node in `unpinned`. Returns the
    /// pages of all nodes that thereby lose their last pin.
    pub(crate) fn count_unpin(&self, node: NodeId, unpinned: &mut Unpinned) -> u32 {
        let (mut at, mut pages) = (node, 0);
        loop {
            let node = &self.nodes[at as usize];
            let lost = unpinned.entry(at).or_default();
            *lost += 1;
            if *lost < node.pins {
                return pages;
            }
            pages += node.pages.len() as u32;
            if node.parent == NONE {
                return pages;
            }
            at = node.parent;
        }
    }

    /// Undoes [`RadixTree::count_unpin`]; returns the same.
    pub(crate) fn count_pin(&self, node: NodeId, unpinned: &mut Unpinned) -> u32 {
        let (mut at, mut pages) = (node, 0);
        loop {
            let node = &self.nodes[at as usize];
            let lost = unpinned.entry(at).or_default();
            *lost -= 1;
            if *lost + 1 < node.pins {
                return pages;
            }
            pages += node.pages.len() as u32;
            if node.parent == NONE {
                return pages;
            }
            at = node.parent;
        }
    }

    /// Evicts the least recently used leaf without pins; appends its pages to `freed`. Returns its
    /// tokens.
    pub fn evict_leaf(&mut self, freed: &mut impl Extend<BlockId>) -> Option<u32> {
        let leaf = self.leaves.next()?;
        let node = &mut self.nodes[leaf as usize];
        let key = std::mem::take(&mut node.key);
        let pages = std::mem::take(&mut node.pages);
        let hashes = std::mem::take(&mut node.hashes);
        let (parent, edge) = (node.parent, node.edge);
        if let Some(log) = &mut self.log {
            log.removed(&hashes);
        }
        self.spare.push(leaf);
        self.edges.remove(&(parent, edge));
        self.evictable -= key.len() as u32;
        freed.extend(pages);
        self.nodes[parent as usize].children -= 1;
        self.offer(parent);
        Some(key.len() as u32)
    }

    /// The child of `node` that `tokens` continue into, and the length of the match in whole pages.
    fn child(&self, node: NodeId, tokens: &[Token]) -> Option<(NodeId, usize)> {
        let first = tokens.get(..self.page)?;
        let &child = self.edges.get(&(node, hash_page(first)))?;
        let common = common_prefix(&self.nodes[child as usize].key, tokens);
        let whole = common - common % self.page;
        (whole > 0).then_some((child, whole))
    }

    /// Splits a node: a new upper node gets the first `at` tokens, `lower` keeps the rest and its
    /// id. Their last use is unchanged.
    fn split(&mut self, lower: NodeId, at: usize, held: &impl Fn(&[BlockId]) -> u32) -> NodeId {
        let cut = at / self.page;
        let node = &mut self.nodes[lower as usize];
        let was_pinned = node.pins > 0;
        // An unpinned node has no used pages.
        let above = if was_pinned { held(&node.pages[..cut]) } else { 0 };
        node.pins -= above;
        let is_pinned = node.pins > 0;
        let rest = node.key[at..].to_vec();
        let mut key = std::mem::replace(&mut node.key, rest);
        let rest = node.pages[cut..].to_vec();
        let mut pages = std::mem::replace(&mut node.pages, rest);
        key.truncate(at);
        key.shrink_to_fit();
        pages.truncate(cut);
        pages.shrink_to_fit();
        let rest = node.hashes.split_off(cut.min(node.hashes.len()));
        let hashes = std::mem::replace(&mut node.hashes, rest);
        let (parent, edge, used_at) = (node.parent, node.edge, node.used_at);
        let rest = node.key.len() as u32;
        node.edge = hash_page(&node.key[..self.page]);
        let lower_edge = node.edge;
        let pins = above + u32::from(is_pinned);
        let upper = self.add(Node { key, pages, parent, edge, children: 1, pins, used_at, hashes });
        self.nodes[lower as usize].parent = upper;
        self.edges.insert((parent, edge), upper);
        self.edges.insert((upper, lower_edge), lower);
        if was_pinned && !is_pinned {
            self.protected -= rest;
            self.evictable += rest;
            self.offer(lower);
        }
        upper
    }

    /// Puts a node into the eviction heap if it is an unpinned leaf; drops a bare root of another
    /// tenant than 0.
    fn offer(&mut self, id: NodeId) {
        let node = &self.nodes[id as usize];
        if node.children > 0 || node.pins > 0 {
            return;
        }
        match node.parent {
            NONE => {
                let salt = node.edge;
                if salt != 0 {
                    self.roots.remove(&salt);
                    self.spare.push(id);
                }
            }
            _ => self.leaves.on_release(id, node.used_at),
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        match self.spare.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as NodeId - 1
            }
        }
    }
}

fn hash_page(tokens: &[Token]) -> u64 {
    xxh64(bytemuck::cast_slice(tokens), 0)
}

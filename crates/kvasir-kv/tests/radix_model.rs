//! `RadixTree` against a naive tree that scans every node for each match, split, pin and eviction.

#![allow(clippy::unwrap_used)]

use kvasir_kv::{BlockId, NodeId, RadixTree, Token};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Node {
    /// All tokens from the root; its own are those from `start` on.
    path: Vec<Token>,
    start: usize,
    pages: Vec<BlockId>,
    pins: u32,
    used_at: u64,
}

#[derive(Debug, Default)]
struct Naive {
    page: usize,
    /// `None` for evicted nodes.
    nodes: Vec<Option<Node>>,
    clock: u64,
}

impl Naive {
    fn live(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(i, node)| Some((i, node.as_ref()?)))
    }

    /// Matches `tokens`: deepest node, matched length, pages.
    fn walk(&mut self, tokens: &[Token]) -> (Option<usize>, usize, Vec<BlockId>) {
        self.clock += 1;
        let (mut at, mut reached, mut pages) = (0, None, Vec::new());
        loop {
            let common = |node: &Node| {
                let same = node.path.iter().zip(tokens).take_while(|(a, b)| a == b).count();
                same.saturating_sub(at) / self.page * self.page
            };
            let next = self.live().find(|(_, node)| {
                node.start == at && tokens.starts_with(&node.path[..at]) && common(node) > 0
            });
            let Some((i, node)) = next else { return (reached, at, pages) };
            let (end, whole) = (at + common(node), node.path.len());
            let clock = self.clock;
            let node = self.nodes[i].as_mut().unwrap();
            if end < whole {
                let mut upper = node.clone();
                upper.path.truncate(end);
                upper.pages.truncate((end - at) / self.page);
                upper.pins = 0;
                node.start = end;
                node.pages.drain(..upper.pages.len());
                pages.extend(&upper.pages);
                self.nodes.push(Some(upper));
                return (Some(self.nodes.len() - 1), end, pages);
            }
            node.used_at = clock;
            pages.extend(&node.pages);
            (at, reached) = (end, Some(i));
        }
    }

    fn insert(&mut self, path: &[Token], start: usize, pages: Vec<BlockId>) -> usize {
        self.clock += 1;
        let used_at = self.clock;
        self.nodes.push(Some(Node { path: path.to_vec(), start, pages, pins: 0, used_at }));
        self.nodes.len() - 1
    }

    fn is_leaf(&self, node: &Node) -> bool {
        self.live().all(|(_, other)| other.start != node.path.len() || !other.path.starts_with(&node.path))
    }

    /// Tokens in nodes that are pinned themselves or have a pinned descendant.
    fn protected(&self) -> usize {
        let pinned: Vec<&Node> = self.live().map(|(_, node)| node).filter(|node| node.pins > 0).collect();
        let is_used = |node: &Node| pinned.iter().any(|below| below.path.starts_with(&node.path));
        self.live().filter(|(_, node)| is_used(node)).map(|(_, node)| node.path.len() - node.start).sum()
    }

    fn tokens(&self) -> usize {
        self.live().map(|(_, node)| node.path.len() - node.start).sum()
    }

    /// Evicts the least recently used unpinned leaf; returns its pages.
    fn evict(&mut self) -> Option<Vec<BlockId>> {
        let free = self.live().filter(|(_, node)| node.pins == 0 && self.is_leaf(node));
        let (i, _) = free.min_by_key(|(_, node)| node.used_at)?;
        self.nodes[i].take().map(|node| node.pages)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Match(Vec<Token>),
    Insert(Vec<Token>),
    Pin(usize),
    Unpin(usize),
    Evict,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let tokens = || proptest::collection::vec(0u32..3, 0..24);
    let op = prop_oneof![
        2 => tokens().prop_map(Op::Match),
        4 => tokens().prop_map(Op::Insert),
        1 => any::<usize>().prop_map(Op::Pin),
        1 => any::<usize>().prop_map(Op::Unpin),
        2 => Just(Op::Evict),
    ];
    proptest::collection::vec(op, 1..80)
}

/// A node's ids in both trees.
type Both = (NodeId, usize);

fn run(page: usize, ops: &[Op]) {
    let (mut tree, mut naive) = (RadixTree::new(page as u32), Naive { page, ..Naive::default() });
    let (root, mut reached, mut pinned) = (tree.root(0), Vec::<Both>::new(), Vec::<Both>::new());
    let mut next_page = 0;
    for op in ops {
        match op {
            Op::Match(tokens) | Op::Insert(tokens) => {
                let tokens = &tokens[..tokens.len() / page * page];
                let mut pages = Vec::new();
                let found = tree.walk(root, tokens, |_| 0, &mut pages);
                let (node, at, theirs) = naive.walk(tokens);
                assert_eq!((found.tokens as usize, &pages), (at, &theirs));
                reached.extend(node.map(|node| (found.node, node)));
                if matches!(op, Op::Insert(_)) && at < tokens.len() {
                    let fresh: Vec<BlockId> = (next_page..).take((tokens.len() - at) / page).collect();
                    next_page += fresh.len() as u32;
                    let leaf = tree.add_leaf(found.node, &tokens[at..], &fresh).unwrap();
                    reached.push((leaf, naive.insert(tokens, at, fresh)));
                }
            }
            Op::Pin(i) => {
                reached.retain(|(_, node)| naive.nodes[*node].is_some());
                if let Some(&(id, node)) = reached.get(i % reached.len().max(1)) {
                    tree.pin(id, 1);
                    naive.nodes[node].as_mut().unwrap().pins += 1;
                    pinned.push((id, node));
                }
            }
            Op::Unpin(i) => {
                if !pinned.is_empty() {
                    let (id, node) = pinned.swap_remove(i % pinned.len());
                    assert!(tree.unpin(id, 1));
                    naive.nodes[node].as_mut().unwrap().pins -= 1;
                }
            }
            Op::Evict => {
                let mut pages: Vec<BlockId> = Vec::new();
                let evicted = tree.evict_leaf(&mut pages);
                let theirs = naive.evict();
                assert_eq!(evicted.map(|_| pages), theirs);
            }
        }
        assert_eq!(tree.nodes(), naive.live().count());
        assert_eq!(tree.protected() as usize, naive.protected());
        assert_eq!((tree.protected() + tree.evictable()) as usize, naive.tokens());
        let pins = |id, _: &[BlockId]| pinned.iter().filter(|(of, _)| *of == id).count() as u32;
        tree.check(pins).unwrap();
    }
}

proptest! {
    #[test]
    fn radix_tree_agrees_with_a_naive_one(ops in ops(), page in 1usize..4) {
        run(page, &ops);
    }
}

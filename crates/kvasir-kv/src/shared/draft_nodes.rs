//! `DraftNodes`: draft-token trees of one sequence for speculative decoding (tree attention): parents,
//! depths, ancestor masks.
//!
//! States: *proposed* (`propose`) → *claimed* by a step, unsettled (`claim`) → *settled* (`settle`,
//! after verification).
//!
//! - DraftNodes are numbered over all frontiers since the last commit; a parent has a lower number than
//!   its children.
//! - Position of a node = end of the committed prefix + depth. It sees the prefix, its ancestors
//!   and itself.
//! - The mask columns of a frontier are its nodes sorted by (depth, number), so every read is in
//!   rising order of position.
//!
//! A claimed frontier's columns never change afterwards, which keeps the plans of earlier steps
//! valid.

use crate::contract::error::CacheError;
use crate::contract::mask::{set_range, words_for};
use std::ops::{Deref, Range};

/// One claimed frontier: nodes `start .. end`; its columns begin at `at` in `order` and `columns`.
#[derive(Clone, Debug)]
struct Frontier {
    start: u32,
    end: u32,
    at: usize,
}

/// The draft nodes of one sequence that are not settled: the logic behind every cache's `Tree`
/// capability.
#[derive(Clone, Debug, Default)]
pub struct DraftNodes {
    parents: Vec<i32>,
    depths: Vec<u32>,
    proposed: Vec<i32>,
    frontiers: Vec<Frontier>,
    /// Per frontier: the node of each mask column.
    order: Vec<u32>,
    /// Per frontier: the mask column of each node.
    columns: Vec<u32>,
}

/// The empty tree that [`LazyDraftNodes`] dereferences to.
static NONE: DraftNodes = DraftNodes {
    parents: Vec::new(),
    depths: Vec::new(),
    proposed: Vec::new(),
    frontiers: Vec::new(),
    order: Vec::new(),
    columns: Vec::new(),
};

/// Draft nodes stored as one pointer, null for a sequence that never had any: keeps hot structs
/// small.
#[derive(Clone, Debug, Default)]
pub(crate) struct LazyDraftNodes(Option<Box<DraftNodes>>);

impl Deref for LazyDraftNodes {
    type Target = DraftNodes;
    fn deref(&self) -> &DraftNodes {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl LazyDraftNodes {
    /// Whether the sequence never had draft nodes.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The nodes, mutable, if the sequence ever had any.
    pub(crate) fn get_mut(&mut self) -> Option<&mut DraftNodes> {
        self.0.as_deref_mut()
    }

    /// The nodes, mutable, allocated on first use.
    pub(crate) fn make(&mut self) -> &mut DraftNodes {
        self.0.get_or_insert_default()
    }
}

impl DraftNodes {
    /// Number of claimed nodes not yet settled.
    pub fn unsettled(&self) -> u32 {
        self.parents.len() as u32
    }

    /// Number of proposed nodes, which the next claim runs.
    pub fn proposed(&self) -> u32 {
        self.proposed.len() as u32
    }

    /// Whether nothing is unsettled and nothing proposed.
    pub fn is_idle(&self) -> bool {
        self.parents.is_empty() && self.proposed.is_empty()
    }

    /// Declares the next frontier, replacing one that is not claimed yet; an empty one withdraws
    /// it. A parent is an earlier unsettled node, or −1 for the committed prefix.
    pub fn propose(&mut self, parents: &[i32]) -> Result<(), CacheError> {
        let first = self.unsettled();
        for (i, &parent) in parents.iter().enumerate() {
            let node = first + i as u32;
            if !(parent == -1 || u32::try_from(parent).is_ok_and(|parent| parent < node)) {
                return Err(CacheError::BadParent { node, parent });
            }
        }
        self.proposed.clear();
        self.proposed.extend_from_slice(parents);
        Ok(())
    }

    /// Turns the proposed frontier into unsettled nodes; returns their numbers.
    pub fn claim(&mut self) -> Range<u32> {
        let start = self.unsettled();
        for parent in self.proposed.drain(..) {
            let depth = usize::try_from(parent).ok().and_then(|parent| self.depths.get(parent));
            self.depths.push(depth.map_or(0, |depth| depth + 1));
            self.parents.push(parent);
        }
        let (end, at) = (self.unsettled(), self.order.len());
        self.order.extend(0..end);
        let order = &mut self.order[at..];
        order.sort_unstable_by_key(|&node| (self.depths[node as usize], node));
        self.columns.resize(at + end as usize, 0);
        for (column, &node) in order.iter().enumerate() {
            self.columns[at + node as usize] = column as u32;
        }
        self.frontiers.push(Frontier { start, end, at });
        start..end
    }

    /// Undoes the newest claim: its nodes are proposed again, replacing any later proposal.
    pub fn unclaim(&mut self) {
        if let Some(frontier) = self.frontiers.pop() {
            self.order.truncate(frontier.at);
            self.columns.truncate(frontier.at);
            self.depths.truncate(frontier.start as usize);
            self.proposed.clear();
            self.proposed.extend(self.parents.drain(frontier.start as usize..));
        }
    }

    /// Distance of a node from its root, which has depth 0.
    pub fn depth(&self, node: u32) -> u32 {
        self.depths.get(node as usize).copied().unwrap_or_default()
    }

    /// The nodes that the frontier ending at node `end` reads, in column order (by position).
    pub fn order(&self, end: u32) -> &[u32] {
        match self.frontier(end) {
            Some(frontier) => &self.order[frontier.at..][..end as usize],
            None => &[],
        }
    }

    /// Appends the ancestor mask of the frontier `nodes` to `words`; returns the words per query.
    /// Columns: `prefix` columns of the committed prefix, then those of [`DraftNodes::order`].
    ///
    /// `window` is how far back a node sees, itself included; `prefix_from` gives the first prefix
    /// column that a node of a given depth sees.
    pub fn write_mask(
        &self,
        nodes: Range<u32>,
        prefix: u32,
        window: Option<u32>,
        prefix_from: impl Fn(u32) -> u32,
        words: &mut Vec<u64>,
    ) -> u32 {
        let per_query = words_for(prefix + nodes.end);
        let Some(columns) = self.frontier(nodes.end).map(|frontier| &self.columns[frontier.at..]) else {
            return per_query;
        };
        for query in nodes {
            let at = words.len();
            words.resize(at + per_query as usize, 0);
            let row = &mut words[at..];
            let depth = self.depth(query);
            set_range(row, prefix_from(depth), prefix);
            let mut node = query;
            while window.is_none_or(|window| depth - self.depth(node) < window) {
                let column = prefix + columns[node as usize];
                row[column as usize / 64] |= 1 << (column % 64);
                match u32::try_from(self.parents[node as usize]) {
                    Ok(parent) => node = parent,
                    Err(_) => break,
                }
            }
        }
        per_query
    }

    /// Checks that `accepted` starts at a root and goes from parent to child.
    pub fn check_chain(&self, accepted: &[u32]) -> Result<(), CacheError> {
        let mut last = -1;
        for &node in accepted {
            match self.parents.get(node as usize) {
                Some(&parent) if parent == last => last = node as i32,
                _ => return Err(CacheError::NotAChain { node }),
            }
        }
        Ok(())
    }

    /// Drops all nodes, proposed ones included.
    pub fn settle(&mut self) {
        self.parents.clear();
        self.depths.clear();
        self.proposed.clear();
        self.frontiers.clear();
        self.order.clear();
        self.columns.clear();
    }

    fn frontier(&self, end: u32) -> Option<&Frontier> {
        self.frontiers.iter().rev().find(|frontier| frontier.end == end)
    }
}

#[cfg(test)]
mod tests {
    use crate::shared::draft_nodes::*;

    fn claimed(parents: &[i32]) -> (DraftNodes, Range<u32>) {
        let mut nodes = DraftNodes::default();
        nodes.propose(parents).unwrap();
        let range = nodes.claim();
        (nodes, range)
    }

    /// Mask columns that each query of a frontier sees.
    fn seen(nodes: &DraftNodes, range: Range<u32>, prefix: u32, window: Option<u32>) -> Vec<Vec<u32>> {
        let mut words = Vec::new();
        let from =
            |depth: u32| window.map_or(0, |window| (prefix + depth + 1).saturating_sub(window).min(prefix));
        let per_query = nodes.write_mask(range.clone(), prefix, window, from, &mut words) as usize;
        assert_eq!(words.len(), range.len() * per_query);
        let columns = prefix + range.end;
        let bit = |row: &[u64], c: u32| row[c as usize / 64] >> (c % 64) & 1 == 1;
        words.chunks(per_query).map(|row| (0..columns).filter(|&c| bit(row, c)).collect()).collect()
    }

    #[test]
    fn the_documents_example() {
        let (nodes, range) = claimed(&[-1, 0, 0, 1]);
        assert_eq!(nodes.order(4), [0, 1, 2, 3]);
        assert_eq!((0..4).map(|n| nodes.depth(n)).collect::<Vec<_>>(), [0, 1, 1, 2]);
        let expected: [&[u32]; 4] = [&[0, 1, 2], &[0, 1, 2, 3], &[0, 1, 2, 4], &[0, 1, 2, 3, 5]];
        assert_eq!(seen(&nodes, range, 2, None), expected);
    }

    #[test]
    fn mask_columns_are_ordered_by_position() {
        let (nodes, range) = claimed(&[-1, 0, 1, 0, -1]);
        assert_eq!(nodes.order(5), [0, 4, 1, 3, 2]);
        let expected: [&[u32]; 5] = [&[0], &[0, 2], &[0, 2, 4], &[0, 3], &[1]];
        assert_eq!(seen(&nodes, range, 0, None), expected);
    }

    #[test]
    fn a_sliding_window_masks_prefix_and_ancestors() {
        let (nodes, range) = claimed(&[-1, 0, 1]);
        let expected: [&[u32]; 3] = [&[3, 4], &[4, 5], &[5, 6]];
        assert_eq!(seen(&nodes, range, 4, Some(2)), expected);
    }

    #[test]
    fn later_frontiers_keep_earlier_columns() {
        let (mut nodes, first) = claimed(&[-1, 0]);
        nodes.propose(&[-1, 1]).unwrap();
        let second = nodes.claim();
        assert_eq!(nodes.order(2), [0, 1]);
        assert_eq!(nodes.order(4), [0, 2, 1, 3]);
        assert_eq!(seen(&nodes, first, 0, None), [vec![0], vec![0, 1]]);
        assert_eq!(seen(&nodes, second, 0, None), [vec![1], vec![0, 2, 3]]);
    }

    #[test]
    fn parents_are_earlier_nodes_or_the_prefix() {
        let mut nodes = DraftNodes::default();
        assert_eq!(nodes.propose(&[-1, 1]), Err(CacheError::BadParent { node: 1, parent: 1 }));
        assert_eq!(nodes.propose(&[-2]), Err(CacheError::BadParent { node: 0, parent: -2 }));
        nodes.propose(&[-1]).unwrap();
        assert_eq!(nodes.propose(&[0]), Err(CacheError::BadParent { node: 0, parent: 0 }));
        assert_eq!(nodes.proposed(), 1, "a refusal leaves what was proposed");
        nodes.propose(&[]).unwrap();
        assert!(nodes.is_idle());
    }

    #[test]
    fn an_accepted_chain_is_a_path_from_a_root() {
        let (nodes, _) = claimed(&[-1, 0, -1, 1]);
        assert_eq!(nodes.check_chain(&[]), Ok(()));
        assert_eq!(nodes.check_chain(&[0, 1, 3]), Ok(()));
        assert_eq!(nodes.check_chain(&[2]), Ok(()));
        assert_eq!(nodes.check_chain(&[1]), Err(CacheError::NotAChain { node: 1 }));
        assert_eq!(nodes.check_chain(&[0, 2]), Err(CacheError::NotAChain { node: 2 }));
        assert_eq!(nodes.check_chain(&[0, 3]), Err(CacheError::NotAChain { node: 3 }));
        assert_eq!(nodes.check_chain(&[0, 9]), Err(CacheError::NotAChain { node: 9 }));
    }

    #[test]
    fn a_canceled_claim_can_be_proposed_again() {
        let (mut nodes, _) = claimed(&[-1]);
        nodes.propose(&[0, 0]).unwrap();
        nodes.claim();
        nodes.propose(&[2]).unwrap();
        nodes.unclaim();
        assert_eq!((nodes.unsettled(), nodes.proposed()), (1, 2));
        assert_eq!(nodes.claim(), 1..3);
        assert_eq!(nodes.depth(2), 1);
        nodes.settle();
        assert!(nodes.is_idle());
    }
}

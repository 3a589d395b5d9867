//! Consistency check of a [`RadixTree`]: recounts pins, children, tokens and free leaves.

use crate::blocks::radix::tree::{NodeId, RadixTree, hash_page};
use crate::contract::ids::BlockId;

impl RadixTree {
    /// Consistency check of the whole tree. `held` counts the pins that belong to pages.
    pub fn check(&self, held: impl Fn(NodeId, &[BlockId]) -> u32) -> Result<(), String> {
        let (mut evictable, mut protected, mut reachable, mut leaves) = (0, 0, 0, 0);
        // Children and pinned children by node.
        let mut counts = vec![(0u32, 0u32); self.nodes.len()];
        for (&(parent, edge), &child) in &self.edges {
            let node = &self.nodes[child as usize];
            let len = node.key.len();
            if node.parent != parent
                || node.edge != edge
                || hash_page(&node.key[..self.page.min(len)]) != edge
            {
                return Err(format!("node {child} differs from its edge in parent {parent}"));
            }
            if len == 0 || !len.is_multiple_of(self.page) || node.pages.len() != len / self.page {
                return Err(format!("node {child} has {len} tokens in {} pages", node.pages.len()));
            }
            reachable += 1;
            let (children, pinned) = &mut counts[parent as usize];
            *children += 1;
            *pinned += u32::from(node.pins > 0);
            match node.pins {
                0 => evictable += len as u32,
                _ => protected += len as u32,
            }
            let is_leaf = node.children == 0 && node.pins == 0;
            leaves += usize::from(is_leaf);
            if is_leaf != self.leaves.contains(child) {
                return Err(format!("node {child} is a free leaf: {is_leaf}, listed: {}", !is_leaf));
            }
        }
        if (evictable, protected) != (self.evictable, self.protected) {
            let counted = (self.evictable, self.protected);
            return Err(format!(
                "evictable and protected are {evictable} and {protected}, counted {counted:?}"
            ));
        }
        if reachable != self.nodes() || leaves != self.leaves.len() {
            return Err(format!("{reachable} of {} nodes are reachable, {leaves} free leaves", self.nodes()));
        }
        let roots = self.roots.values().copied();
        for id in self.edges.values().copied().chain(roots) {
            let node = &self.nodes[id as usize];
            let (children, pinned) = counts[id as usize];
            if children != node.children || node.pins != pinned + held(id, &node.pages) {
                return Err(format!("node {id} counts {} children and {} pins", node.children, node.pins));
            }
        }
        Ok(())
    }
}

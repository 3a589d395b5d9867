//! `PageNodes`: which tree node each page is in, through one level of labels.
//!
//! Pages name a label and a label names a node. Splitting a node therefore relabels only the pages
//! of the smaller part.

use crate::blocks::radix::tree::NodeId;
use crate::contract::ids::BlockId;
use crate::shared::runs::{indices, leading, runs};
use std::ops::Range;

/// Names a set of pages of one node.
type Label = u32;

const NONE: Label = Label::MAX;

/// Which node each page is in, by one level of indirection: a split relabels only the pages of the
/// smaller part.
#[derive(Clone, Debug)]
pub(crate) struct PageNodes {
    /// The label of each page.
    pages: Vec<Label>,
    /// The node of each label.
    nodes: Vec<NodeId>,
    /// Unused labels.
    spare: Vec<Label>,
}

impl PageNodes {
    /// Pages below `bound`, none of them in a node.
    pub(crate) fn new(bound: usize) -> Self {
        Self { pages: vec![NONE; bound], nodes: Vec::new(), spare: Vec::new() }
    }

    /// The node of a page, if it is published.
    #[inline]
    pub(crate) fn node(&self, page: BlockId) -> Option<NodeId> {
        self.nodes.get(*self.pages.get(page as usize)? as usize).copied()
    }

    /// Splits off the leading pages of a range that share a node, or are in none.
    pub(crate) fn next_alike(&self, rest: &mut Range<BlockId>) -> Option<(Option<NodeId>, Range<BlockId>)> {
        let labels = &self.pages[indices(rest)];
        let label = *labels.first()?;
        let alike = rest.start..rest.start + leading(labels, |_, &of| of == label) as u32;
        rest.start = alike.end;
        Some((self.nodes.get(label as usize).copied(), alike))
    }

    /// Number of leading pages of a range that are in no node.
    pub(crate) fn outside_of(&self, pages: &Range<BlockId>) -> u32 {
        leading(&self.pages[indices(pages)], |_, &label| label == NONE) as u32
    }

    /// Number of leading `pages` that are in no node.
    pub(crate) fn outside(&self, pages: &[BlockId]) -> usize {
        let mut count = 0;
        for run in runs(pages) {
            let outside = self.outside_of(&run);
            count += outside as usize;
            if (outside as usize) < run.len() {
                break;
            }
        }
        count
    }

    /// Puts pages into a node, under a new label.
    pub(crate) fn put(&mut self, node: NodeId, pages: &[BlockId]) {
        let label = self.spare.pop().unwrap_or(self.nodes.len() as Label);
        match self.nodes.get_mut(label as usize) {
            Some(of) => *of = node,
            None => self.nodes.push(node),
        }
        runs(pages).for_each(|run| self.pages[indices(&run)].fill(label));
    }

    /// Updates the pages after a split of their node.
    pub(crate) fn split(&mut self, parts: [(NodeId, &[BlockId]); 2]) {
        let [a, b] = parts;
        let (most, rest) = if a.1.len() > b.1.len() { (a, b) } else { (b, a) };
        if let Some(&page) = most.1.first() {
            let label = self.pages[page as usize];
            self.nodes[label as usize] = most.0;
        }
        self.put(rest.0, rest.1);
    }

    /// Removes the pages of an evicted node.
    pub(crate) fn remove(&mut self, pages: &[BlockId]) {
        self.spare.extend(pages.first().map(|&page| self.pages[page as usize]));
        runs(pages).for_each(|run| self.pages[indices(&run)].fill(NONE));
    }

    /// Removes all nodes; passes every page that was in one to `gone`.
    pub(crate) fn clear(&mut self, mut gone: impl FnMut(BlockId)) {
        for (page, label) in (0..).zip(&mut self.pages) {
            if std::mem::replace(label, NONE) != NONE {
                gone(page);
            }
        }
        self.nodes.clear();
        self.spare.clear();
    }
}

//! `Places`: which tree node each page is in, through one level of labels.
//!
//! Pages name a label and a label names a node. Splitting a node therefore relabels only the pages
//! of the smaller part.

use super::NodeId;
use crate::BlockId;
use crate::blocks::{indices, leading, runs};
use std::ops::Range;

/// Stands for several pages of one node.
type Label = u32;

const NONE: Label = Label::MAX;

/// Which node each page is in. Pages name a label and a label names a node, so that where a node is split only the pages of its
/// smaller part are changed.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The label of each page.
    pages: Vec<Label>,
    /// The node of each label.
    nodes: Vec<NodeId>,
    /// Labels that no page has.
    spare: Vec<Label>,
}

impl Places {
    /// Pages below `bound`, which are in no node.
    pub(super) fn new(bound: usize) -> Self {
        Self { pages: vec![NONE; bound], nodes: Vec::new(), spare: Vec::new() }
    }

    /// The node of a page, if it is in any.
    #[inline]
    pub(super) fn node(&self, page: BlockId) -> Option<NodeId> {
        self.nodes.get(*self.pages.get(page as usize)? as usize).copied()
    }

    /// Takes the leading pages that are in the same node, or in none, off a range of them.
    pub(super) fn next_alike(&self, rest: &mut Range<BlockId>) -> Option<(Option<NodeId>, Range<BlockId>)> {
        let labels = &self.pages[indices(rest)];
        let label = *labels.first()?;
        let alike = rest.start..rest.start + leading(labels, |_, &of| of == label) as u32;
        rest.start = alike.end;
        Some((self.nodes.get(label as usize).copied(), alike))
    }

    /// How many leading pages of a range are in no node.
    pub(super) fn outside_of(&self, pages: &Range<BlockId>) -> u32 {
        leading(&self.pages[indices(pages)], |_, &label| label == NONE) as u32
    }

    /// How many leading ones of `pages` are in no node.
    pub(super) fn outside(&self, pages: &[BlockId]) -> usize {
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

    /// Pages get a label of their own, which names this node.
    pub(super) fn put(&mut self, node: NodeId, pages: &[BlockId]) {
        let label = self.spare.pop().unwrap_or(self.nodes.len() as Label);
        match self.nodes.get_mut(label as usize) {
            Some(of) => *of = node,
            None => self.nodes.push(node),
        }
        runs(pages).for_each(|run| self.pages[indices(&run)].fill(label));
    }

    /// The pages of one node are those of two now.
    pub(super) fn split(&mut self, parts: [(NodeId, &[BlockId]); 2]) {
        let [a, b] = parts;
        let (most, rest) = if a.1.len() > b.1.len() { (a, b) } else { (b, a) };
        if let Some(&page) = most.1.first() {
            let label = self.pages[page as usize];
            self.nodes[label as usize] = most.0;
        }
        self.put(rest.0, rest.1);
    }

    /// A node is gone, and these were its pages.
    pub(super) fn remove(&mut self, pages: &[BlockId]) {
        self.spare.extend(pages.first().map(|&page| self.pages[page as usize]));
        runs(pages).for_each(|run| self.pages[indices(&run)].fill(NONE));
    }

    /// All nodes are gone; `gone` is told of every page that was in one.
    pub(super) fn clear(&mut self, mut gone: impl FnMut(BlockId)) {
        for (page, label) in (0..).zip(&mut self.pages) {
            if std::mem::replace(label, NONE) != NONE {
                gone(page);
            }
        }
        self.nodes.clear();
        self.spare.clear();
    }
}

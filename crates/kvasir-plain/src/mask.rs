//! Narrows the plan's explicit masks by positions and draft trees, so that masks are checked.
//!
//! An entry is visible to a query when all of these hold:
//!
//! 1. Causal: its position is at most the query's plus the layer's look-ahead.
//! 2. Sliding window: `query - entry < window`, if the layer has one.
//! 3. Draft tree: if this step writes it as a draft, it is the query itself or an ancestor. Layers
//!    with a look-ahead have no drafts.
//! 4. The plan's explicit mask has its bit set. The read holds the entries of all rows of the step.

use kvasir_exec::{Batch, BatchRow};
use kvasir_kv::{PlanRow, PoolId, Position, Section, Slot};
use kvasir_program::LayerFacts;
use std::collections::HashMap;
use std::ops::Range;

/// The entries that one row of a step reads in a layer group, and what each of its queries may
/// attend to.
pub(crate) struct Reads<'a> {
    /// In order of position: pool, slot, position.
    pub(crate) entries: Vec<(PoolId, Slot, Position)>,
    section: &'a Section,
    row: PlanRow,
    /// Positions of the queries.
    positions: &'a [Position],
    /// Tree node of each slot to which this step writes a draft or its root.
    nodes: HashMap<Slot, usize>,
    /// Parent of each node; the root is its own parent.
    parents: Vec<usize>,
    /// Index of the query that is node 0 (the newest committed token).
    first_node: usize,
}

impl<'a> Reads<'a> {
    /// The reads of `row`, a row of `section`. `positions` are those of all queries of the step.
    pub(crate) fn new(
        section: &'a Section,
        row: &PlanRow,
        positions: &'a [Position],
        batch: &Batch,
        of: &BatchRow,
    ) -> Self {
        let entries = section.entries(row).collect();
        let count = of.drafts.count as usize;
        let first_node = (of.tokens.len as usize).saturating_sub(count + 1);
        let mut parents = vec![0];
        match of.drafts.tree {
            Some(tree) => parents.extend(batch.parents[tree.range()].iter().map(|p| *p as usize)),
            None => parents.extend(0..count),
        }
        let slots = &section.write_slots[row.queries.range()];
        let nodes = slots[first_node.min(slots.len())..].iter().copied().zip(0..).collect();
        let positions = &positions[row.queries.range()];
        Self { entries, section, row: *row, positions, nodes, parents, first_node }
    }

    /// Indices of the entries visible to `query` (counted within the row) in a layer, in order of
    /// position.
    pub(crate) fn visible(&self, query: usize, layer: &LayerFacts) -> Vec<u32> {
        let position = self.positions[query];
        let sees = |entry: usize| {
            let (pool, slot, at) = self.entries[entry];
            let in_window = at <= position.saturating_add(layer.lookahead)
                && layer.window.is_none_or(|window| position.saturating_sub(at) < window);
            let drafts = pool == PoolId(0) && layer.lookahead == 0;
            let node = if drafts { self.nodes.get(&slot) } else { None };
            let is_shown = self.section.sees(&self.row, query as u32, entry as u32);
            in_window && is_shown && node.is_none_or(|node| self.descends(query, *node))
        };
        (0..self.entries.len()).filter(|entry| sees(*entry)).map(|entry| entry as u32).collect()
    }

    /// Indices of its queries in the flat list of the step.
    pub(crate) fn queries(&self) -> Range<usize> {
        self.row.queries.range()
    }

    /// Whether `node` is `query`'s node or one of its ancestors.
    fn descends(&self, query: usize, node: usize) -> bool {
        let Some(mut at) = query.checked_sub(self.first_node) else { return false };
        while at > node {
            at = self.parents[at];
        }
        at == node
    }
}

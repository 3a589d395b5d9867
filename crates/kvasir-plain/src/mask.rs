use kvasir_exec::{Batch, BatchRow};
use kvasir_kv::{Mask, Plan, PlanRow, PoolId, Position, Slot};
use std::collections::HashMap;

/// What one row of a step reads, and which of it each query sees. Built from positions alone: an entry is visible when it lies at or
/// before the query and, if it is a draft of this step, when it is the query itself or an ancestor. Where the cache says more
/// (nodes of earlier steps), its explicit bits narrow it further.
pub(crate) struct Reads {
    /// In order of position.
    pub(crate) entries: Vec<(PoolId, Slot, Position)>,
    row: PlanRow,
    /// Node of each slot that this step writes a draft or its root to.
    nodes: HashMap<Slot, usize>,
    /// Parent of each node, the root's being itself.
    parents: Vec<usize>,
    /// Query that is node 0.
    first_node: usize,
}

impl Reads {
    pub(crate) fn new(plan: &Plan, row: &PlanRow, batch: &Batch, of: &BatchRow) -> Self {
        let entries = plan.entries(row).collect();
        let count = of.drafts.count as usize;
        let first_node = (of.tokens.len as usize).saturating_sub(count + 1);
        let mut parents = vec![0];
        match of.drafts.tree {
            Some(tree) => parents.extend(batch.parents[tree.range()].iter().map(|p| *p as usize)),
            None => parents.extend(0..count),
        }
        let slots = &plan.write_slots[row.queries.range()];
        let nodes = slots[first_node.min(slots.len())..].iter().copied().zip(0..).collect();
        Self { entries, row: *row, nodes, parents, first_node }
    }

    /// Numbers of the entries that `query` (counted within the row) sees through a window, in order.
    pub(crate) fn visible(&self, plan: &Plan, query: usize, window: Option<u32>) -> Vec<u32> {
        let position = plan.positions[self.row.queries.range()][query];
        let sees = |entry: usize| {
            let (pool, slot, at) = self.entries[entry];
            let in_reach = at <= position && window.is_none_or(|w| position - at < w);
            let node = if pool == PoolId(0) { self.nodes.get(&slot) } else { None };
            let explicit = !matches!(self.row.mask, Mask::Explicit { .. })
                || plan.sees(&self.row, query as u32, entry as u32);
            in_reach && explicit && node.is_none_or(|node| self.descends(query, *node))
        };
        (0..self.entries.len()).filter(|entry| sees(*entry)).map(|entry| entry as u32).collect()
    }

    /// Whether `query` is `node` or comes after it on its path.
    fn descends(&self, query: usize, node: usize) -> bool {
        let Some(mut at) = query.checked_sub(self.first_node) else { return false };
        while at > node {
            at = self.parents[at];
        }
        at == node
    }
}

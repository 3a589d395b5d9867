//! Plans of draft forward passes, derived from the plan of the target's step.
//!
//! The draft model's KV pool mirrors the target's: the row of a token lies in the same slot. So
//! forks, rewinds, prefix hits and preemptions of the target's cache hold for the draft model without
//! a cache of its own. Nodes of draft trees lie in scratch slots behind those of the target.

use kvasir_kv::{Layout, Mask, Plan, PlanKind, PlanRow, PoolId, Position, Segment, SeqId, Slot, Span};

/// The entries that one query of the target's step sees, as segments of the draft plan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visible {
    /// Range of [`DraftPlan::visible`].
    pub(crate) segments: Span,
    /// Number of entries.
    pub(crate) len: u32,
}

/// Builds plans over the target's block tables.
#[derive(Debug, Default)]
pub(crate) struct DraftPlan {
    pub(crate) plan: Plan,
    /// Segments of all `Visible`s of this step.
    visible: Vec<Segment>,
}

impl DraftPlan {
    /// Starts from the target's plan: its block tables stay valid, no row is in it yet. Its slot copies
    /// have run.
    pub(crate) fn begin(&mut self, target: &Plan) {
        let plan = &mut self.plan;
        plan.reset(target.step, target.generation);
        plan.table.make_mut().extend_from_slice(&target.table);
        plan.read_positions.extend_from_slice(&target.read_positions);
        plan.mask_words.extend_from_slice(&target.mask_words);
        plan.read_bound = target.read_bound;
        plan.kind = PlanKind::Ragged;
        self.visible.clear();
    }

    /// Starts the next pass of the same step.
    pub(crate) fn next_pass(&mut self) {
        let plan = &mut self.plan;
        plan.rows.clear();
        plan.positions.clear();
        plan.write_slots.clear();
        plan.segments.clear();
        plan.mask_words.clear();
        plan.kind = PlanKind::Ragged;
    }

    /// Adds a row of the target's plan as it is.
    pub(crate) fn copy_row(&mut self, target: &Plan, row: &PlanRow) {
        let plan = &mut self.plan;
        let queries = Span::new(plan.positions.len(), row.queries.len as usize);
        let segments = Span::new(plan.segments.len(), row.segments.len as usize);
        plan.positions.extend_from_slice(&target.positions[row.queries.range()]);
        plan.write_slots.extend_from_slice(&target.write_slots[row.queries.range()]);
        plan.segments.extend_from_slice(&target.segments[row.segments.range()]);
        if matches!(row.mask, Mask::Explicit { .. }) {
            plan.kind = PlanKind::Explicit;
        }
        plan.rows.push(PlanRow { queries, segments, ..*row });
    }

    /// Adds a row of the queries `path` of a row of the target's plan: the newest tokens that were
    /// accepted, whose last one sees `visible`.
    pub(crate) fn path_row(&mut self, target: &Plan, row: &PlanRow, path: &[u32], visible: Visible) {
        let plan = &mut self.plan;
        let queries = Span::new(plan.positions.len(), path.len());
        for query in path {
            let at = (row.queries.start + query) as usize;
            plan.positions.push(target.positions[at]);
            plan.write_slots.push(target.write_slots[at]);
        }
        let segments = Span::new(plan.segments.len(), visible.segments.len as usize);
        plan.segments.extend_from_slice(&self.visible[visible.segments.range()]);
        let (seq, read_len, mask) = (row.seq, visible.len, Mask::Causal);
        plan.rows.push(PlanRow { seq, queries, segments, read_len, mask, ..PlanRow::default() });
    }

    /// The entries that query `query` of a row of the target's plan sees.
    pub(crate) fn visible(&mut self, target: &Plan, row: &PlanRow, query: u32) -> Visible {
        let start = self.visible.len();
        let (mut entry, mut len) = (0, 0);
        for segment in &target.segments[row.segments.range()] {
            let sees = |i: u32| target.sees(row, query, entry + i);
            let seen = match row.mask {
                Mask::None => segment.len,
                Mask::Causal => {
                    (row.read_len + query + 1 - row.queries.len).saturating_sub(entry).min(segment.len)
                }
                Mask::Explicit { .. } => (0..segment.len).take_while(|i| sees(*i)).count() as u32,
            };
            if seen > 0 {
                self.visible.push(Segment { len: seen, ..*segment });
                len += seen;
            }
            // What is seen behind a gap goes into a table, entry by entry.
            let at = self.plan.table.len() as u32;
            let sparse = self.plan.read_positions.len() as u32;
            let mut first = None;
            for i in (seen..segment.len).filter(|i| sees(*i)) {
                self.plan.table.make_mut().push(target.slot(segment, i));
                let position = target.position(segment, i);
                self.plan.read_positions.push(position);
                first.get_or_insert(position);
            }
            if let Some(first) = first {
                let rest = self.plan.table.len() as u32 - at;
                let layout = Layout::Table { at, block: 1, offset: 0 };
                self.visible.push(Segment { layout, len: rest, first, sparse: Some(sparse), ..*segment });
                len += rest;
            }
            entry += segment.len;
        }
        Visible { segments: Span::new(start, self.visible.len() - start), len }
    }

    /// Adds a row of tree nodes: `nodes.len()` queries behind `visible` and behind the nodes that ran
    /// before. The nodes of the tree lie in the slots from `scratch` on; `positions` and `parents`
    /// are those of all of them, and the last `queries` of them run now. A parent is a node before,
    /// or −1 for the visible entries.
    pub(crate) fn nodes_row(
        &mut self,
        seq: SeqId,
        visible: Visible,
        scratch: Slot,
        positions: &[Position],
        parents: &[i32],
        queries: u32,
    ) {
        let plan = &mut self.plan;
        let (all, from) = (positions.len(), positions.len() - queries as usize);
        let span = Span::new(plan.positions.len(), queries as usize);
        plan.positions.extend_from_slice(&positions[from..]);
        plan.write_slots.extend((from..all).map(|node| scratch + node as Slot));
        plan.read_bound = plan.read_bound.max(scratch + all as Slot);
        let segments = plan.segments.len();
        plan.segments.extend_from_slice(&self.visible[visible.segments.range()]);
        let sparse = plan.read_positions.len() as u32;
        plan.read_positions.extend_from_slice(positions);
        let layout = Layout::Run { start: scratch };
        let (len, first) = (all as u32, positions[0]);
        plan.segments.push(Segment { pool: PoolId(0), layout, len, first, sparse: Some(sparse) });
        let read_len = visible.len + all as u32;
        // A chain sees all that is there.
        let is_chain = queries == 1 && parents.iter().zip(-1..).all(|(parent, before)| *parent == before);
        let mask = if is_chain { Mask::None } else { self.write_mask(visible.len, parents, from) };
        let section = &mut self.plan.full;
        section.rows.push(PlanRow {
            seq,
            queries: span,
            segments: Span::new(segments, section.segments.len() - segments),
            read_len,
            mask,
            ..PlanRow::default()
        });
    }

    /// Appends the ancestor mask of the nodes from `from` on.
    fn write_mask(&mut self, visible: u32, parents: &[i32], from: usize) -> Mask {
        let words = &mut self.plan.mask_words;
        let (at, per_query) = (words.len() as u32, (visible as usize + parents.len()).div_ceil(64));
        for query in from..parents.len() {
            let row = words.len();
            words.resize(row + per_query, 0);
            let bits = &mut words[row..];
            let (whole, rest) = (visible as usize / 64, visible % 64);
            bits[..whole].fill(u64::MAX);
            if rest > 0 {
                bits[whole] = (1 << rest) - 1;
            }
            let mut node = query as i32;
            while let Ok(ancestor) = usize::try_from(node) {
                let column = visible as usize + ancestor;
                bits[column / 64] |= 1 << (column % 64);
                node = parents[ancestor];
            }
        }
        self.plan.kind = PlanKind::Explicit;
        Mask::Explicit { at, words_per_query: per_query as u32 }
    }
}

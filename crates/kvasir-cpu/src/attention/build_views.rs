//! Builds the read lists of attention from the page tables, masks and windows of a section.

use crate::attention::shared_prefix::group_by_prefix;
use crate::attention::views::{Chunk, Run, View, Views};
use crate::memory::kv_pool::rows::CHUNK;
use kvasir_kv::{Layout, Mask, Plan, PlanRow, Section, Segment, Slot};

/// Where a query stands in its plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanQuery {
    /// Index of the plan row.
    pub(crate) row: usize,
    /// Index of the query within the row.
    pub(crate) query: u32,
    /// Index of its token in the step.
    pub(crate) token: usize,
}

impl Views {
    fn clear(&mut self) {
        self.views.clear();
        self.runs.clear();
        self.chunks.clear();
    }

    /// Builds the views of a layer group's section, replacing the previous ones. Keeps its
    /// allocations.
    pub(crate) fn build_section(&mut self, section: &Section) {
        self.clear();
        for row in &section.rows {
            let queries = row.queries.len as usize;
            match row.mask {
                Mask::Explicit { .. } => {
                    for query in 0..queries {
                        self.add_query(section, row, query, |_| true);
                    }
                }
                mask => {
                    let mut view = self.open(row.queries.start as usize, queries, mask == Mask::Causal);
                    for segment in &section.segments[row.segments.range()] {
                        self.add_segment(section, segment, &mut view);
                    }
                    self.close(view);
                }
            }
        }
        group_by_prefix(self);
    }

    /// Builds the views of a sliding-window layer whose KV cache is a ring of `ring` slots; the
    /// plan must be one sequence with consecutive positions.
    pub(crate) fn build_ring(&mut self, plan: &Plan, window: u32, ring: Slot) {
        self.clear();
        for row in &plan.rows {
            let positions = &plan.positions[row.queries.range()];
            let (Some(&first), Some(&last)) = (positions.first(), positions.last()) else { continue };
            let mut view = self.open(row.queries.start as usize, positions.len(), true);
            let mut position = first.saturating_sub(window.saturating_sub(1));
            while position <= last {
                let slot = position % ring;
                let len = (ring - slot).min(last + 1 - position);
                self.add(&mut view, Run { position, pool: 0, slot, len });
                position += len;
            }
            self.close(view);
        }
        group_by_prefix(self);
    }

    /// Adds the view of one query: the entries that its mask allows and `keep` accepts. The
    /// argument of `keep` is the number of an entry within the row's read.
    fn add_query(&mut self, section: &Section, row: &PlanRow, query: usize, keep: impl Fn(usize) -> bool) {
        let mut view = self.open(row.queries.start as usize + query, 1, false);
        for (i, (pool, slot, position)) in section.entries(row).enumerate() {
            if section.sees(row, query as u32, i as u32) && keep(i) {
                self.add(&mut view, Run { position, pool: pool.0, slot, len: 1 });
            }
        }
        self.close(view);
    }

    /// Builds the views of a sparse selection (DSA top-k), one per query: the visible entries among
    /// those that `selected` lists for the query's token. Its lists must be sorted.
    pub(crate) fn build_selection<'s>(&mut self, section: &Section, selected: impl Fn(usize) -> &'s [u32]) {
        self.clear();
        for row in &section.rows {
            for query in 0..row.queries.len as usize {
                let entries = selected(row.queries.start as usize + query);
                self.add_query(section, row, query, |i| entries.binary_search(&(i as u32)).is_ok());
            }
        }
        group_by_prefix(self);
    }

    /// Builds one view per query. `list_runs` appends the runs of a query to an empty list, in
    /// order of position.
    pub(crate) fn build_queries(&mut self, plan: &Plan, mut list_runs: impl FnMut(PlanQuery, &mut Vec<Run>)) {
        self.clear();
        let mut runs = Vec::new();
        for (row, plan_row) in plan.rows.iter().enumerate() {
            for (query, token) in (0..).zip(plan_row.queries.range()) {
                runs.clear();
                list_runs(PlanQuery { row, query, token }, &mut runs);
                let mut view = self.open(token, 1, false);
                runs.drain(..).for_each(|run| self.add(&mut view, run));
                self.close(view);
            }
        }
        group_by_prefix(self);
    }

    /// Begins a view of `tokens` query tokens.
    fn open(&self, token: usize, tokens: usize, causal: bool) -> View {
        View { token, tokens, entries: 0, chunks: (self.chunks.len(), self.chunks.len()), causal }
    }

    /// Ends a view.
    fn close(&mut self, mut view: View) {
        view.chunks.1 = self.chunks.len();
        self.views.push(view);
    }

    /// Appends the entries of one segment (contiguous run, page table or sparse list).
    fn add_segment(&mut self, section: &Section, segment: &Segment, view: &mut View) {
        let Segment { pool, layout, len, first, sparse } = *segment;
        let mut i = 0;
        while i < len {
            // Entries that are surely contiguous: up to the end of the block.
            let n = match (sparse, layout) {
                (Some(_), _) => 1,
                (None, Layout::Run { .. }) => len - i,
                (None, Layout::Table { block, offset, .. }) => (block - (i + offset) % block).min(len - i),
            };
            let position = if sparse.is_some() { section.position(segment, i) } else { first + i };
            self.add(view, Run { position, pool: pool.0, slot: section.slot(segment, i), len: n });
            i += n;
        }
    }

    /// Appends contiguous entries, cut at chunk boundaries and merged with the last run where they
    /// continue it.
    fn add(&mut self, view: &mut View, mut rest: Run) {
        while rest.len > 0 {
            let n = rest.len.min(CHUNK as u32 - rest.position % CHUNK as u32);
            let part = Run { len: n, ..rest };
            let number = part.position / CHUNK as u32;
            let started = self.chunks.len() > view.chunks.0;
            match self.runs.last_mut().filter(|last| started && last.position / CHUNK as u32 == number) {
                Some(last) if last.follows(&part) => last.len += n,
                Some(_) => self.runs.push(part),
                None => {
                    let at = self.runs.len() as u32;
                    self.runs.push(part);
                    self.chunks.push(Chunk { first: view.entries as u32, len: 0, runs: (at, at) });
                }
            }
            let end = self.runs.len() as u32;
            if let Some(chunk) = self.chunks.last_mut() {
                chunk.len += n;
                chunk.runs.1 = end;
            }
            view.entries += n as usize;
            rest = Run { position: rest.position + n, slot: rest.slot + n, len: rest.len - n, ..rest };
        }
    }
}

use super::share::{Stretch, share};
use kvasir_kv::{Layout, Mask, Plan, PlanRow, Position, Segment, Slot};

/// Positions that are reduced together. Chunks begin at multiples of this, whatever the slots.
pub(crate) const CHUNK: usize = 64;

/// Rows of K and V whose slots and positions both follow each other, within one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) position: Position,
    pub(crate) pool: u32,
    pub(crate) slot: Slot,
    pub(crate) len: u32,
}

/// What a view reads of one chunk of positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Entries of the view before this chunk.
    pub(crate) first: u32,
    /// Entries of it in this chunk.
    pub(crate) len: u32,
    pub(super) runs: (u32, u32),
}

/// What a stretch of query tokens reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// First query token, in the step's flat list.
    pub(crate) token: usize,
    pub(crate) tokens: usize,
    entries: usize,
    pub(super) chunks: (usize, usize),
    /// The last token sees all entries, each one before it one fewer; otherwise every token sees all.
    causal: bool,
}

/// What each token of a step reads, by chunks of positions; made once per step, or per layer where the layer selects.
#[derive(Debug, Default)]
pub(crate) struct Views {
    pub(crate) views: Vec<View>,
    runs: Vec<Run>,
    pub(super) chunks: Vec<Chunk>,
    /// Views in the order in which those that read the same are neighbours.
    pub(super) order: Vec<u32>,
    /// Views that begin with the same chunks, as stretches of [`order`](Self::order).
    pub(super) groups: Vec<super::share::Group>,
    pub(super) stretches: Vec<Stretch>,
}

impl Views {
    pub(crate) fn chunks(&self, view: &View) -> &[Chunk] {
        &self.chunks[view.chunks.0..view.chunks.1]
    }

    /// Where a chunk's rows lie, in order of position.
    pub(crate) fn runs(&self, chunk: &Chunk) -> &[Run] {
        &self.runs[chunk.runs.0 as usize..chunk.runs.1 as usize]
    }

    /// What all views read.
    pub(crate) fn all_runs(&self) -> &[Run] {
        &self.runs
    }

    /// A chunk's entries, in order of position: pool, slot and position.
    pub(crate) fn entries(&self, chunk: &Chunk) -> impl Iterator<Item = (u32, Slot, Position)> {
        let runs = self.runs(chunk).iter();
        runs.flat_map(|run| (0..run.len).map(|i| (run.pool, run.slot + i, run.position + i)))
    }

    fn clear(&mut self) {
        self.views.clear();
        self.runs.clear();
        self.chunks.clear();
    }

    /// What the plan lets every token see.
    pub(crate) fn of_plan(&mut self, plan: &Plan) {
        self.clear();
        for row in &plan.rows {
            let queries = row.queries.len as usize;
            match row.mask {
                Mask::Explicit { .. } => {
                    for query in 0..queries {
                        self.of_query(plan, row, query, |_| true);
                    }
                }
                mask => {
                    let mut view = self.open(row.queries.start as usize, queries, mask == Mask::Causal);
                    for segment in &plan.segments[row.segments.range()] {
                        self.segment(plan, segment, &mut view);
                    }
                    self.close(view);
                }
            }
        }
        share(self);
    }

    /// What the tokens of a plan, of one sequence in a line, see through a window whose rows lie in a ring of so many slots.
    pub(crate) fn of_ring(&mut self, plan: &Plan, window: u32, ring: Slot) {
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
        share(self);
    }

    /// What one query of a row sees of the entries that `keep`, given each entry's number within the row's read.
    fn of_query(&mut self, plan: &Plan, row: &PlanRow, query: usize, keep: impl Fn(usize) -> bool) {
        let mut view = self.open(row.queries.start as usize + query, 1, false);
        for (i, (pool, slot, position)) in plan.entries(row).enumerate() {
            if plan.sees(row, query as u32, i as u32) && keep(i) {
                self.add(&mut view, Run { position, pool: pool.0, slot, len: 1 });
            }
        }
        self.close(view);
    }

    /// One view for each query: of its row's entries those that it sees and that `keep(query's number in the step)` names, in rising order.
    pub(crate) fn of_selection<'s>(&mut self, plan: &Plan, keep: impl Fn(usize) -> &'s [u32]) {
        self.clear();
        for row in &plan.rows {
            for query in 0..row.queries.len as usize {
                let kept = keep(row.queries.start as usize + query);
                self.of_query(plan, row, query, |i| kept.binary_search(&(i as u32)).is_ok());
            }
        }
        share(self);
    }

    fn open(&self, token: usize, tokens: usize, causal: bool) -> View {
        View { token, tokens, entries: 0, chunks: (self.chunks.len(), self.chunks.len()), causal }
    }

    fn close(&mut self, mut view: View) {
        view.chunks.1 = self.chunks.len();
        self.views.push(view);
    }

    fn segment(&mut self, plan: &Plan, segment: &Segment, view: &mut View) {
        let Segment { pool, layout, len, first, sparse } = *segment;
        let mut i = 0;
        while i < len {
            // As many entries as surely follow each other.
            let n = match (sparse, layout) {
                (Some(_), _) => 1,
                (None, Layout::Run { .. }) => len - i,
                (None, Layout::Table { block, offset, .. }) => (block - (i + offset) % block).min(len - i),
            };
            let position = if sparse.is_some() { plan.position(segment, i) } else { first + i };
            self.add(view, Run { position, pool: pool.0, slot: plan.slot(segment, i), len: n });
            i += n;
        }
    }

    /// Adds entries behind those that are there, cut at the bounds of chunks.
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
            rest =
                Run { position: rest.position + n, slot: rest.slot + n, len: rest.len - n, pool: rest.pool };
        }
    }
}

impl Run {
    fn follows(&self, next: &Self) -> bool {
        self.pool == next.pool
            && self.slot + self.len == next.slot
            && self.position + self.len == next.position
    }
}

impl View {
    /// Entries that query `query` of this view sees: the first so many.
    pub(crate) fn visible(&self, query: usize) -> usize {
        let all = self.entries;
        if self.causal { (all + query + 1).saturating_sub(self.tokens) } else { all }
    }
}

use kvasir_kv::{Mask, Plan, PlanRow, Position, Slot};

/// Positions that are reduced together. Chunks begin at multiples of this, whatever the slots.
pub(crate) const CHUNK: usize = 64;

/// One row of K and V that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: Slot,
    pub(crate) position: Position,
    pub(crate) pool: u32,
}

/// Entries whose positions lie in one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) first: usize,
    pub(crate) len: usize,
    /// All 64 positions are there, in slots that follow each other in one pool.
    pub(crate) run: bool,
}

/// What a stretch of query tokens reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// First query token, in the step's flat list.
    pub(crate) token: usize,
    pub(crate) tokens: usize,
    entries: (usize, usize),
    chunks: (usize, usize),
    /// The last token sees all entries, each one before it one fewer; otherwise every token sees all.
    causal: bool,
}

/// What each token of a step reads, by chunks of positions; made once per step, or per layer where the layer selects.
#[derive(Debug, Default)]
pub(crate) struct Views {
    pub(crate) views: Vec<View>,
    entries: Vec<Entry>,
    chunks: Vec<Chunk>,
}

impl Views {
    pub(crate) fn entries(&self, view: &View) -> &[Entry] {
        &self.entries[view.entries.0..view.entries.1]
    }

    pub(crate) fn chunks(&self, view: &View) -> &[Chunk] {
        &self.chunks[view.chunks.0..view.chunks.1]
    }

    /// What all views read.
    pub(crate) fn all_entries(&self) -> &[Entry] {
        &self.entries
    }

    fn clear(&mut self) {
        self.views.clear();
        self.entries.clear();
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
                    let start = self.entries.len();
                    self.entries.extend(plan.entries(row).map(entry));
                    self.add(row.queries.start as usize, queries, start, mask == Mask::Causal);
                }
            }
        }
    }

    /// What one query of a row sees of the entries that `keep`, given each entry's number within the row's read.
    pub(crate) fn of_query(
        &mut self,
        plan: &Plan,
        row: &PlanRow,
        query: usize,
        keep: impl Fn(usize) -> bool,
    ) {
        let start = self.entries.len();
        let all = plan.entries(row).enumerate();
        let seen = all.filter(|(i, _)| plan.sees(row, query as u32, *i as u32) && keep(*i));
        self.entries.extend(seen.map(|(_, e)| entry(e)));
        self.add(row.queries.start as usize + query, 1, start, false);
    }

    /// Starts over with views of single queries.
    pub(crate) fn start_selection(&mut self) {
        self.clear();
    }

    fn add(&mut self, token: usize, tokens: usize, start: usize, causal: bool) {
        let chunks = self.chunks.len();
        let mut first = start;
        while let Some(head) = self.entries.get(first) {
            let number = head.position as usize / CHUNK;
            let rest = &self.entries[first..];
            let len = rest.iter().take_while(|e| e.position as usize / CHUNK == number).count();
            let follow = |p: &[Entry]| p[0].slot + 1 == p[1].slot && p[0].pool == p[1].pool;
            let run = len == CHUNK && rest[..len].windows(2).all(follow);
            self.chunks.push(Chunk { first: first - start, len, run });
            first += len;
        }
        let entries = (start, self.entries.len());
        self.views.push(View { token, tokens, entries, chunks: (chunks, self.chunks.len()), causal });
    }
}

fn entry((pool, slot, position): (kvasir_kv::PoolId, Slot, Position)) -> Entry {
    Entry { slot, position, pool: pool.0 }
}

impl View {
    /// Entries that query `query` of this view sees: the first so many.
    pub(crate) fn visible(&self, query: usize) -> usize {
        let all = self.entries.1 - self.entries.0;
        if self.causal { (all + query + 1).saturating_sub(self.tokens) } else { all }
    }
}

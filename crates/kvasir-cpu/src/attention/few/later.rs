use crate::attention::Attend;
use crate::attention::view::{CHUNK, Chunk, Run};
use crate::pool::Rows;
use crate::tile::LANES;

/// What is read a head later: where the rows of each 16 positions lie.
#[derive(Clone, Copy)]
pub(crate) struct Later {
    pub(crate) at: [*const u8; CHUNK / LANES],
    /// Bytes of each 16 rows, and from a head to the next.
    bytes: usize,
    step: usize,
}

impl Later {
    pub(crate) const NOTHING: Self = Self { at: [std::ptr::null(); CHUNK / LANES], bytes: 0, step: 0 };

    /// The same rows of the next head: a pool keeps a chunk's slots together, head by head.
    pub(super) fn next_head(self) -> Self {
        Self { at: self.at.map(|at| at.wrapping_add(self.step)), ..self }
    }

    /// Where its parts begin, so many to each 16 rows.
    pub(super) fn parts(&self, parts: usize) -> impl Iterator<Item = *const u8> {
        let each = self.bytes / parts;
        self.at.iter().flat_map(move |at| (0..parts).map(move |part| at.wrapping_add(part * each)))
    }
}

impl Attend<'_> {
    /// One head's keys of a chunk.
    pub(crate) fn later_keys(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, head, |run| &self.pool(run.pool).keys)
    }

    /// One head's values of a chunk.
    pub(crate) fn later_values(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, head, |run| self.pool(run.pool).read_as_values())
    }

    fn later<'a>(&'a self, chunk: &Chunk, head: usize, rows: impl Fn(&Run) -> &'a Rows) -> Later {
        let Some(first) = self.views.runs(chunk).first() else { return Later::NOTHING };
        // Where there are no rows, the first ones stand for them.
        let (pool, at) = (rows(first), [rows(first).part(first.slot, head); CHUNK / LANES]);
        let mut later = Later { at, bytes: pool.part_bytes() * LANES, step: pool.head_bytes() };
        for run in self.views.runs(chunk) {
            let first = run.position as usize % CHUNK;
            for quarter in first / LANES..=(first + run.len as usize - 1) / LANES {
                let skipped = (quarter * LANES).saturating_sub(first) as u32;
                later.at[quarter] = rows(run).part(run.slot + skipped, head);
            }
        }
        later
    }
}

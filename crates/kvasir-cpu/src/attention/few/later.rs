use crate::Level;
use crate::ask::{Near, ask_line};
use crate::attention::view::{CHUNK, Chunk, Run};
use crate::attention::{Attend, in_pairs};
use crate::pool::{Heads, KvType, Rows, TOGETHER};
use crate::tile::LANES;
use std::ops::Range;

/// What is read a head later: where the rows of each 16 positions lie.
#[derive(Clone, Copy)]
pub(crate) struct Later {
    pub(crate) at: [*const u8; CHUNK / LANES],
    /// Bytes of each 16 rows.
    bytes: usize,
    /// Whose rows they are, and how far others lie apart from them.
    head: usize,
    heads: Heads,
}

impl Later {
    pub(crate) const NOTHING: Self =
        Self { at: [std::ptr::null(); CHUNK / LANES], bytes: 0, head: 0, heads: Heads::NONE };

    /// Whether there is anything to ask for.
    #[inline(always)]
    pub(super) fn is_something(&self) -> bool {
        self.bytes > 0
    }

    /// The same rows of the next head: they lie as the first one's do.
    pub(super) fn next_head(self) -> Self {
        let step = self.heads.to_next(self.head);
        Self { at: self.at.map(|at| at.wrapping_add(step)), head: self.head + 1, ..self }
    }

    /// Asks for some lines of a row.
    #[inline(always)]
    pub(super) fn ask_row(&self, row: usize, lines: Range<usize>) {
        let at = self.at[row / LANES].wrapping_add(row % LANES * (self.bytes / LANES));
        lines.for_each(|line| ask_line(Near::Second, at.wrapping_add(line * 64)));
    }

    /// Where its parts begin, so many to each 16 rows.
    pub(super) fn parts(&self, parts: usize) -> impl Iterator<Item = *const u8> {
        let each = self.bytes / parts;
        self.at.iter().flat_map(move |at| (0..parts).map(move |part| at.wrapping_add(part * each)))
    }
}

impl Attend<'_> {
    /// A head's keys of a chunk and its values. Nothing is asked for where rows are read as they lie, in order, and all lie one behind the other, head by
    /// head: that is foreseen.
    pub(in crate::attention) fn first_later(&self, level: Level, chunk: &Chunk, head: usize) -> [Later; 2] {
        let in_order = |run: &Run| {
            run.len as usize == CHUNK
                && (run.slot as usize).is_multiple_of(TOGETHER)
                && self.pool(run.pool).keys.kind() == KvType::Bf16
        };
        match self.views.runs(chunk) {
            [run] if in_pairs(level) && in_order(run) => [Later::NOTHING; 2],
            _ => [self.later_keys(chunk, head), self.later_values(chunk, head)],
        }
    }

    /// One head's keys of a chunk.
    pub(super) fn later_keys(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, head, |run| &self.pool(run.pool).keys)
    }

    /// One head's values of a chunk.
    fn later_values(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, head, |run| self.pool(run.pool).read_as_values())
    }

    fn later<'a>(&'a self, chunk: &Chunk, head: usize, rows: impl Fn(&Run) -> &'a Rows) -> Later {
        let Some(first) = self.views.runs(chunk).first() else { return Later::NOTHING };
        // Where there are no rows, the first ones stand for them.
        let (pool, at) = (rows(first), [rows(first).part(first.slot, head); CHUNK / LANES]);
        let mut later = Later { at, bytes: pool.part_bytes() * LANES, head, heads: pool.heads() };
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

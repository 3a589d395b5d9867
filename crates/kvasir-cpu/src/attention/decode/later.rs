//! Prefetch of the next head's K or V rows in decode attention.
//!
//! While the rows of one KV head are multiplied, those of the next head are prefetched into L2 line
//! by line; behind the last K head come the V rows, and behind the last V head the next chunk's K
//! rows. At levels in bf16 pair order nothing is prefetched where rows are contiguous and read in
//! order: the hardware prefetcher follows those.

use crate::attention::views::{CHUNK, Chunk, Run};
use crate::attention::{Attend, in_pairs};
use crate::isa::features::Level;
use crate::isa::tile::LANES;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::{Heads, Rows, TOGETHER};
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use std::ops::Range;

/// A head's K or V rows of one chunk, to be prefetched: the address of each 16 positions.
#[derive(Clone, Copy)]
pub(crate) struct Later {
    pub(crate) at: [*const u8; CHUNK / LANES],
    /// Bytes of 16 rows.
    bytes: usize,
    /// The head that they belong to, and the offsets of other heads.
    head: usize,
    heads: Heads,
}

impl Later {
    pub(crate) const NOTHING: Self =
        Self { at: [std::ptr::null(); CHUNK / LANES], bytes: 0, head: 0, heads: Heads::NONE };

    /// Whether there is anything to prefetch.
    #[inline(always)]
    pub(super) fn is_something(&self) -> bool {
        self.bytes > 0
    }

    /// The same rows of the next head; every head has the same layout.
    pub(super) fn next_head(self) -> Self {
        let step = self.heads.to_next(self.head);
        Self { at: self.at.map(|at| at.wrapping_add(step)), head: self.head + 1, ..self }
    }

    /// Prefetches some cache lines of a row into L2.
    #[inline(always)]
    pub(super) fn ask_row(&self, row: usize, lines: Range<usize>) {
        let at = self.at[row / LANES].wrapping_add(row % LANES * (self.bytes / LANES));
        lines.for_each(|line| prefetch_line(CacheLevel::L2, at.wrapping_add(line * 64)));
    }

    /// Addresses of its parts in memory order, `parts` to each 16 rows.
    pub(super) fn parts(&self, parts: usize) -> impl Iterator<Item = *const u8> {
        let each = self.bytes / parts;
        self.at.iter().flat_map(move |at| (0..parts).map(move |part| at.wrapping_add(part * each)))
    }
}

impl Attend<'_> {
    /// A head's K rows of a chunk and its V rows. At levels [in pairs](in_pairs), nothing is to be
    /// prefetched where the bf16 rows of a whole chunk are contiguous: the hardware prefetcher
    /// follows them from head to head.
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

    /// One head's K rows of a chunk.
    pub(super) fn later_keys(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, head, |run| &self.pool(run.pool).keys)
    }

    /// One head's V rows of a chunk.
    fn later_values(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, head, |run| self.pool(run.pool).read_as_values())
    }

    fn later<'a>(&'a self, chunk: &Chunk, head: usize, rows: impl Fn(&Run) -> &'a Rows) -> Later {
        let Some(first) = self.views.runs(chunk).first() else { return Later::NOTHING };
        // Positions without rows repeat the first address.
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

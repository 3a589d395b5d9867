//! Prefetch of the next head's K or V rows in decode attention.
//!
//! While the rows of one KV head are multiplied, those of the next head are prefetched into L2 line
//! by line; behind the last K head come the V rows, and behind the last V head the next chunk's K
//! rows.

use crate::isa::tile::LANES;
use crate::memory::kv_pool::rows::{CHUNK, Heads};
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use std::ops::Range;

/// A head's K or V rows of one chunk, to be prefetched: the address of each 16 positions.
#[derive(Clone, Copy)]
pub(crate) struct NextHead {
    pub(crate) at: [*const u8; CHUNK / LANES],
    /// Bytes of 16 rows.
    pub(crate) bytes: usize,
    /// The head that they belong to, and the offsets of other heads.
    pub(crate) head: usize,
    pub(crate) heads: Heads,
}

impl Default for NextHead {
    fn default() -> Self {
        Self { at: [std::ptr::null(); CHUNK / LANES], bytes: 0, head: 0, heads: Heads::default() }
    }
}

impl NextHead {
    /// Whether there is anything to prefetch.
    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.bytes > 0
    }

    /// The same rows of the next head; every head has the same layout.
    pub(crate) fn next_head(self) -> Self {
        let step = self.heads.to_next(self.head);
        Self { at: self.at.map(|at| at.wrapping_add(step)), head: self.head + 1, ..self }
    }

    /// Prefetches some cache lines of a row into L2.
    #[inline(always)]
    pub(crate) fn prefetch_row(&self, row: usize, lines: Range<usize>) {
        let at = self.at[row / LANES].wrapping_add(row % LANES * (self.bytes / LANES));
        lines.for_each(|line| prefetch_line(CacheLevel::L2, at.wrapping_add(line * 64)));
    }

    /// Addresses of its parts in memory order, `parts` to each 16 rows.
    pub(crate) fn parts(&self, parts: usize) -> impl Iterator<Item = *const u8> {
        let each = self.bytes / parts;
        self.at.iter().flat_map(move |at| (0..parts).map(move |part| at.wrapping_add(part * each)))
    }
}

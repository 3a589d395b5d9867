//! KV prefetch for the next layer, issued inside the GEMM loops.
//!
//! With 5 to 64 tokens per step the GEMMs are compute-bound and leave memory bandwidth idle, while
//! attention is memory-bound. While a thread attends to a layer, it records where the same K and V
//! rows lie in the next layer. The GEMM kernels in between prefetch those pages into L2, so that
//! attention then reads from the caches.
//!
//! 1. `record` (attention) appends the pages of one KV chunk to the worker's queue, up to a budget.
//! 2. `next` (GEMM kernels) is called at every possible prefetch point and pops a page when it is
//!    due.
//! 3. The queue delays its pages to the latest point at which all of them can still be issued. The
//!    number of prefetch points per layer is learned from the previous step. Pages issued too early
//!    are evicted again by the weights.
//!
//! No result depends on it. Decision 0022 has the measurements.

use crate::prefetch::hint::{CacheLevel, prefetch_line};
use std::collections::VecDeque;

/// Cache lines per page.
const LINES: usize = 64;
/// Bytes of a cache line; `PAGE` is a 4 KB page.
const LINE: usize = 64;
const PAGE: usize = LINES * LINE;
/// Budget of all threads together, in pages (16 MB): prefetched rows must still be in L3 when
/// attention reads them.
pub(crate) const BUDGET: usize = 4096;
/// Margin in pages before the latest possible start: a thread may meet fewer prefetch points than
/// in the previous step.
const EARLY: usize = 128;

/// One worker's prefetch queue for the next layer's K and V.
#[derive(Default)]
pub(crate) struct KvPrefetchQueue {
    /// The layer whose attention recorded the pages.
    layer: Option<usize>,
    pages: VecDeque<Page>,
    /// Prefetch points since the queue was filled.
    points: usize,
    /// Prefetch points behind each layer in the previous step.
    points_before: Vec<usize>,
}

impl KvPrefetchQueue {
    /// Records what is read in the next layer: at most `budget` pages, in the order of reading.
    /// `ranges` receives a callback that takes an address and a length in bytes.
    pub(crate) fn record(
        &mut self,
        layer: usize,
        budget: usize,
        ranges: impl FnOnce(&mut dyn FnMut(*const u8, usize)),
    ) {
        if self.layer != Some(layer) {
            self.begin(layer);
        }
        let mut left = budget.saturating_sub(self.pages.len());
        // Reserved once: a steady decode step must not allocate.
        self.pages.reserve(left);
        ranges(&mut |at, bytes| {
            // A trailing half page counts as a whole page; less than half is left to demand loads.
            let count = ((bytes + PAGE / 2) / PAGE).min(left);
            self.pages.extend((0..count).map(|n| Page(at.wrapping_add(n * PAGE))));
            left -= count;
        });
    }

    /// Stores the count of prefetch points of the previous layer and empties the queue.
    fn begin(&mut self, layer: usize) {
        if let Some(before) = self.layer.replace(layer) {
            let layers = self.points_before.len().max(before + 1);
            self.points_before.resize(layers, 0);
            self.points_before[before] = self.points;
        }
        self.pages.clear();
        self.points = 0;
    }

    /// Whether enough prefetch points remain after this one for all queued pages plus `EARLY`.
    fn can_wait(&self) -> bool {
        let all = self.layer.and_then(|layer| self.points_before.get(layer)).copied().unwrap_or(0);
        self.points + self.pages.len() + EARLY < all
    }

    /// Pops the next page to prefetch, if it is due.
    pub(crate) fn next(&mut self) -> Option<Page> {
        self.points += 1;
        if self.can_wait() { None } else { self.pages.pop_front() }
    }
}

/// A page, prefetched a few lines at a time: a core has some 50 fill buffers and drops prefetches
/// beyond them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Page(*const u8);

// SAFETY: a page is an address for prefetch hints; no memory is accessed through it.
unsafe impl Send for Page {}

impl Page {
    /// Prefetches part `part` of `of` into L2; `of` must divide the 64 lines.
    #[inline(always)]
    pub(crate) fn prefetch(self, part: usize, of: usize) {
        let lines = LINES / of;
        let first = part * lines;
        (first..first + lines)
            .for_each(|line| prefetch_line(CacheLevel::L2, self.0.wrapping_add(line * LINE)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_order_until_another_layer_is_recorded() {
        let at = |n: usize| std::ptr::without_provenance::<u8>(n);
        let mut queue = KvPrefetchQueue::default();
        queue.record(3, 9, |record| record(at(0x10_0000), 2 * PAGE + PAGE / 2));
        queue.record(3, 9, |record| {
            record(at(0x20_0000), PAGE / 2 - 1);
            record(at(0x30_0000), PAGE);
        });
        let mut some = || queue.next().map(|page| page.0 as usize);
        assert_eq!([some(), some()], [Some(0x10_0000), Some(0x10_0000 + PAGE)]);
        assert_eq!([some(), some(), some()], [Some(0x10_0000 + 2 * PAGE), Some(0x30_0000), None]);
        queue.record(4, 9, |record| record(at(0x40_0000), usize::MAX / 2));
        assert_eq!(std::iter::from_fn(|| queue.next()).count(), 9);
        queue.record(5, 9, |record| record(at(0x50_0000), PAGE));
        assert_eq!([queue.next(), queue.next()], [Some(Page(at(0x50_0000))), None]);
    }

    #[test]
    fn pages_wait_for_the_latest_point_that_fits_all() {
        const POINTS: usize = 2 * EARLY;
        let mut queue = KvPrefetchQueue::default();
        // Which points of a layer prefetch one of its two pages.
        let mut due_points = |layer| {
            queue.record(layer, 9, |record| record(std::ptr::without_provenance(0x10_0000), 2 * PAGE));
            (0..POINTS).filter(|_| queue.next().is_some()).collect::<Vec<_>>()
        };
        for layer in [0, 1] {
            assert_eq!(due_points(layer), [0, 1], "how many points there are is not known");
        }
        for layer in [0, 1, 0] {
            assert_eq!(due_points(layer), [POINTS - EARLY - 3, POINTS - EARLY - 2]);
        }
    }
}

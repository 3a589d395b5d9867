//! KV prefetch for the next layer, issued inside the GEMM loops.
//!
//! With 5 to 64 tokens per step the GEMMs are compute-bound and leave memory bandwidth idle, while
//! attention is memory-bound. While a thread attends to a layer, it records where the same K and V
//! rows lie in the next layer. The GEMM kernels in between prefetch those pages into L2, so that
//! attention then reads from the caches.
//!
//! 1. `note` (attention) appends the pages of one KV chunk to a thread-local queue, up to a budget.
//! 2. `next` (GEMM kernels) is called at every possible prefetch point and pops a page when it is
//!    due.
//! 3. The queue delays its pages to the latest point at which all of them can still be issued. The
//!    number of prefetch points per layer is learned from the previous step. Pages issued too early
//!    are evicted again by the weights.
//!
//! No result depends on it. Decision 0022 has the measurements.

use crate::prefetch::hint::{CacheLevel, prefetch_line};
use std::cell::RefCell;
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
/// One thread's prefetch queue for the next layer's K and V.
struct Pages {
    /// The layer whose attention recorded the pages.
    layer: usize,
    left: VecDeque<Page>,
    /// Prefetch points since the queue was filled.
    wanted: usize,
    /// Prefetch points behind each layer in the previous step.
    before: Vec<usize>,
}

impl Pages {
    const NONE: Self = Self { layer: usize::MAX, left: VecDeque::new(), wanted: 0, before: Vec::new() };

    /// Stores the count of prefetch points of the previous layer and empties the queue.
    fn begin(&mut self, layer: usize) {
        if self.layer != usize::MAX {
            let layers = self.before.len().max(self.layer + 1);
            self.before.resize(layers, 0);
            self.before[self.layer] = self.wanted;
        }
        self.left.clear();
        (self.layer, self.wanted) = (layer, 0);
    }

    /// Whether enough prefetch points remain after this one for all queued pages plus `EARLY`.
    fn can_wait(&self) -> bool {
        let all = self.before.get(self.layer).copied().unwrap_or(0);
        self.wanted + self.left.len() + EARLY < all
    }
}

thread_local! {
    static PAGES: RefCell<Pages> = const { RefCell::new(Pages::NONE) };
}

/// Records what is read in the next layer: at most `most` pages, in the order in which `layer`
/// reads its own. `note` receives a callback that takes an address and a length in bytes.
pub(crate) fn note(layer: usize, most: usize, note: impl FnOnce(&mut dyn FnMut(*const u8, usize))) {
    PAGES.with_borrow_mut(|pages| {
        if pages.layer != layer {
            pages.begin(layer);
        }
        let mut room = most.saturating_sub(pages.left.len());
        // Reserved once: a steady decode step must not allocate.
        pages.left.reserve(room);
        note(&mut |at, bytes| {
            // A trailing half page counts as a whole page; less than half is left to demand loads.
            let count = ((bytes + PAGE / 2) / PAGE).min(room);
            pages.left.extend((0..count).map(|n| Page(at.wrapping_add(n * PAGE))));
            room -= count;
        });
    });
}

/// Pops the next page to prefetch, if it is due.
pub(crate) fn next() -> Option<Page> {
    PAGES.with_borrow_mut(|pages| {
        pages.wanted += 1;
        if pages.can_wait() { None } else { pages.left.pop_front() }
    })
}

/// A page, prefetched a few lines at a time: a core has some 50 fill buffers and drops prefetches
/// beyond them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Page(*const u8);

impl Page {
    /// A stand-in where no page is due. Prefetching memory that is in L1 is free, so kernels need
    /// no branch.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(near: *const u8) -> Self {
        Self(near)
    }

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
        note(3, 9, |note| note(at(0x10_0000), 2 * PAGE + PAGE / 2));
        note(3, 9, |note| {
            note(at(0x20_0000), PAGE / 2 - 1);
            note(at(0x30_0000), PAGE);
        });
        let some = || next().map(|page| page.0 as usize);
        assert_eq!([some(), some()], [Some(0x10_0000), Some(0x10_0000 + PAGE)]);
        assert_eq!([some(), some(), some()], [Some(0x10_0000 + 2 * PAGE), Some(0x30_0000), None]);
        note(4, 9, |note| note(at(0x40_0000), usize::MAX / 2));
        assert_eq!(std::iter::from_fn(next).count(), 9);
        note(5, 9, |note| note(at(0x50_0000), PAGE));
        assert_eq!([next(), next()], [Some(Page(at(0x50_0000))), None]);
    }

    #[test]
    fn pages_wait_for_the_latest_point_that_fits_all() {
        const WANTED: usize = 2 * EARLY;
        let note_two = |layer| note(layer, 9, |note| note(std::ptr::without_provenance(0x10_0000), 2 * PAGE));
        let came = || (0..WANTED).map(|_| next().is_some()).collect::<Vec<_>>();
        let at_once = |n: usize| n < 2;
        let late = |n: usize| (WANTED - EARLY - 3..WANTED - EARLY - 1).contains(&n);
        for layer in [0, 1] {
            note_two(layer);
            assert_eq!(
                came(),
                (0..WANTED).map(at_once).collect::<Vec<_>>(),
                "how many will be wanted is not known"
            );
        }
        for layer in [0, 1, 0] {
            note_two(layer);
            assert_eq!(came(), (0..WANTED).map(late).collect::<Vec<_>>());
        }
    }
}

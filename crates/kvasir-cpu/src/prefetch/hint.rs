//! Software prefetch hints (`prefetcht0`, `prefetcht1`); no-ops outside x86-64.
//!
//! A hint never faults, so any address is allowed. No result depends on it.

/// Which cache level a prefetch targets.
#[derive(Clone, Copy)]
pub(crate) enum CacheLevel {
    /// L1.
    L1,
    /// L2.
    L2,
}

/// Hardware prefetchers stop at 4 KB page boundaries, also inside huge pages.
pub(crate) const PAGE: usize = 4096;

/// Prefetches one cache line; any address is allowed.
#[inline(always)]
pub(crate) fn prefetch_line(near: CacheLevel, at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it accesses no memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match near {
            CacheLevel::L1 => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
            CacheLevel::L2 => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
        }
    }
    let _ = (near, at);
}

/// Prefetches a tile of 16 cache lines (1 KB).
#[inline(always)]
pub(crate) fn prefetch_tile(near: CacheLevel, at: *const u8) {
    (0..16).for_each(|line| prefetch_line(near, at.wrapping_add(line * 64)));
}

/// Prefetches the first line of the next page if `at` begins a page: this starts the hardware
/// prefetcher there.
#[inline(always)]
pub(crate) fn prefetch_next_page(at: *const u8) {
    if at.addr().is_multiple_of(PAGE) {
        prefetch_line(CacheLevel::L2, at.wrapping_add(PAGE));
    }
}

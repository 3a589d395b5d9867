//! Memory that is asked for before it is read.

/// How near to a thread memory is brought.
#[derive(Clone, Copy)]
pub(crate) enum Near {
    /// Into the first level of the caches.
    First,
    /// Into the second.
    Second,
}

/// What processors foresee ends with a page of this many bytes, whatever size it really has.
pub(crate) const PAGE: usize = 4096;

/// Asks for a line, whatever the address.
#[inline(always)]
pub(crate) fn ask_line(near: Near, at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match near {
            Near::First => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
            Near::Second => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
        }
    }
    let _ = (near, at);
}

/// Asks for a tile's worth: 16 lines.
#[inline(always)]
pub(crate) fn ask_tile(near: Near, at: *const u8) {
    (0..16).for_each(|line| ask_line(near, at.wrapping_add(line * 64)));
}

/// What is at the beginning of a page is a sign that the next one is wanted.
#[inline(always)]
pub(crate) fn ask_next_page(at: *const u8) {
    if at.addr().is_multiple_of(PAGE) {
        ask_line(Near::Second, at.wrapping_add(PAGE));
    }
}

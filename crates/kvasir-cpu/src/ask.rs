//! Memory that is asked for before it is read.

/// How near to a thread memory is brought.
#[derive(Clone, Copy)]
pub(crate) enum Near {
    /// Into the first level of the caches.
    First,
    /// Into the second.
    Second,
}

/// Asks for a tile's worth: 16 lines.
#[inline(always)]
pub(crate) fn ask_tile(near: Near, at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..16 {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        let at = at.wrapping_add(line * 64).cast();
        // SAFETY: a hint, whatever the address.
        unsafe {
            match near {
                Near::First => _mm_prefetch::<_MM_HINT_T0>(at),
                Near::Second => _mm_prefetch::<_MM_HINT_T1>(at),
            }
        }
    }
    let _ = (near, at);
}

/// Asks for one line, into the second level.
#[inline(always)]
pub(crate) fn ask_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    let _ = at;
}

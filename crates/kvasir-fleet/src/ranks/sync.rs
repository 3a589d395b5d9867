//! The primitives that ranks synchronize by: atomics in shared memory, and the futex.
//!
//! `loom/` compiles this folder with a `sync` and a `memory` of its own, which explore every
//! interleaving. Hence the ring takes no atomic or lock from elsewhere.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub(crate) use std::thread::yield_now;

/// Polls before a waiting rank yields its core; some tens of microseconds.
pub(crate) const SPINS: u32 = 2000;
/// Yields before it sleeps.
pub(crate) const YIELDS: u32 = 20;

/// A word that processes can sleep on.
#[repr(transparent)]
pub(crate) struct Futex(pub(crate) AtomicU32);

impl Futex {
    /// Sleeps until [`wake`](Self::wake) is called, unless the word differs from `expected`. May
    /// return early.
    #[cfg(target_os = "linux")]
    pub(crate) fn sleep(&self, expected: u32) {
        use rustix::thread::futex::{Flags, wait};
        // An interrupted or refused wait is an early return.
        let _ = wait(&self.0, Flags::empty(), expected, None);
    }

    /// Wakes every sleeper.
    #[cfg(target_os = "linux")]
    pub(crate) fn wake(&self) {
        use rustix::thread::futex::{Flags, wake};
        let _ = wake(&self.0, Flags::empty(), i32::MAX as u32);
    }

    /// No memory is shared on other systems, so nothing sleeps there.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn sleep(&self, _expected: u32) {
        yield_now();
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn wake(&self) {}
}

//! Synchronization primitives of the ranks: atomics in shared memory, and [`Futex`].
//!
//! `loom/` replaces this module and `memory` by models that explore every interleaving. So the
//! other modules of this folder must take atomics and locks only from here.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub(crate) use std::thread::yield_now;

/// Polls before a waiting rank yields its core.
pub(crate) const SPINS: u32 = 2000;
/// Yields before a waiting rank sleeps.
pub(crate) const YIELDS: u32 = 20;

/// A Linux futex: a word in shared memory on which threads of several processes can sleep.
#[repr(transparent)]
pub(crate) struct Futex(pub(crate) AtomicU32);

impl Futex {
    /// Sleeps until [`wake`](Self::wake) is called, unless the word differs from `expected`. May
    /// return early.
    #[cfg(target_os = "linux")]
    pub(crate) fn sleep(&self, expected: u32) {
        use rustix::thread::futex::{Flags, wait};
        // Errors (interrupted, word changed) are early returns.
        let _ = wait(&self.0, Flags::empty(), expected, None);
    }

    /// Wakes all sleepers.
    #[cfg(target_os = "linux")]
    pub(crate) fn wake(&self) {
        use rustix::thread::futex::{Flags, wake};
        let _ = wake(&self.0, Flags::empty(), i32::MAX as u32);
    }

    /// Yields; ranks require Linux, so this is never called.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn sleep(&self, _expected: u32) {
        yield_now();
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn wake(&self) {}
}

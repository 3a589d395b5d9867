//! The primitives that the thread pool synchronizes by: `std`'s.
//!
//! `loom/` compiles this folder with a `sync` of its own, which explores every interleaving. Hence
//! the pool takes no atomic, lock, cell or thread from elsewhere.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
pub(crate) use std::thread::{Builder, JoinHandle, park, yield_now};

/// Polls for work before a thread yields its core; some tens of microseconds.
pub(crate) const SPINS: u32 = 2000;
/// Yields before a worker parks.
pub(crate) const YIELDS: u32 = 20;

/// `std`'s cell, accessed by closures: their extent is what the model checks for races.
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

//! A prologue: work that one thread must finish before any item of a parallel region starts.
//!
//! Thread 0 (the caller of the pool, the only thread guaranteed to participate) runs the job. The
//! other threads meanwhile pull the first bytes of their own items into L2 with demand loads.
//!
//! Ordering: `done` is stored with Release after the job, also when it panics, and loaded with
//! Acquire. So whatever the job wrote is visible to every thread whose `wait` returned.

use crate::threads::sync::{AtomicBool, Ordering, SPINS, spin_loop, yield_now};
use crate::threads::worker::Worker;
use std::hint::black_box;

/// Bytes that a waiting thread reads ahead at most: about what memory delivers during a short
/// prologue, and it fits L2.
const AHEAD: usize = 64 * 1024;
/// Bytes of a cache line; `POLL_BYTES` is the number of bytes read between two polls of `done`.
const LINE: usize = 64;
const POLL_BYTES: usize = 4 * LINE;

/// A job to run once for each of a few rows, before a parallel region.
pub(crate) struct Prologue<'a> {
    rows: usize,
    job: &'a (dyn Fn(&mut Worker, usize) + Sync),
    done: AtomicBool,
}

impl<'a> Prologue<'a> {
    /// No prologue: `is_done` is true at once.
    pub(crate) fn none() -> Self {
        Self { rows: 0, job: &|_, _| {}, done: AtomicBool::new(true) }
    }

    pub(crate) fn of(rows: usize, job: &'a (dyn Fn(&mut Worker, usize) + Sync)) -> Self {
        Self { rows, job, done: AtomicBool::new(false) }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Runs the job unless it has run. Only one thread may call this.
    pub(crate) fn run(&self, worker: &mut Worker) {
        if !self.is_done() {
            let _done = Done(&self.done);
            (0..self.rows).for_each(|row| (self.job)(worker, row));
        }
    }

    /// Waits until another thread has run the job, and reads `ahead` meanwhile. Only a
    /// warm-up: no result depends on the bytes.
    pub(crate) fn wait(&self, ahead: &[u8]) {
        for lines in ahead[..ahead.len().min(AHEAD)].chunks(POLL_BYTES) {
            if self.is_done() {
                return;
            }
            // Demand loads, not prefetch hints: they train the hardware prefetcher.
            for byte in lines.iter().step_by(LINE) {
                black_box(*byte);
            }
        }
        spin_until(|| self.is_done());
    }
}

/// Releases the waiting threads when dropped, also when the job panicked.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Spins, then yields, until another thread makes `done` true.
pub(crate) fn spin_until(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins = spins.saturating_add(1);
        if spins < SPINS { spin_loop() } else { yield_now() }
    }
}

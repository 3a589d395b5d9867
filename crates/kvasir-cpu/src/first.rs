//! What one thread does before any piece of work, while the others have what they will read first brought near: memory idles meanwhile, and they wait.

use crate::team::spin_until;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that a thread reads ahead at most: what comes in the time that a few rows take, and stays in the second level.
const AHEAD: usize = 64 * 1024;
/// Bytes of a line of memory, and lines between two looks at whether the wait is over.
const LINE: usize = 64;
const LOOK: usize = 4 * LINE;

/// Something to be done once.
pub(crate) struct First<'a> {
    job: Option<&'a (dyn Fn() + Sync)>,
    done: AtomicBool,
}

impl<'a> First<'a> {
    /// Nothing is to be done.
    pub(crate) fn nothing() -> Self {
        Self { job: None, done: AtomicBool::new(true) }
    }

    pub(crate) fn of(job: &'a (dyn Fn() + Sync)) -> Self {
        Self { job: Some(job), done: AtomicBool::new(false) }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Does it, unless it is done. One thread may call this.
    pub(crate) fn run(&self) {
        if !self.is_done() {
            let _done = Done(&self.done);
            if let Some(job) = self.job {
                job();
            }
        }
    }

    /// Waits until another thread has done it, and reads of `soon` meanwhile. No result depends on that.
    pub(crate) fn wait(&self, soon: &[u8]) {
        for lines in soon[..soon.len().min(AHEAD)].chunks(LOOK) {
            if self.is_done() {
                return;
            }
            // Reads, not requests: processors foresee what comes behind them.
            for byte in lines.iter().step_by(LINE) {
                black_box(*byte);
            }
        }
        spin_until(|| self.is_done());
    }
}

/// Says that nobody need wait any more, also when the job panicked.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

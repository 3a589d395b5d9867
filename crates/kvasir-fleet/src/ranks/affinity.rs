//! [`Affinity`]: CPU affinity that gives each rank its own processors.
//!
//! Ranks synchronize many times per step, so preempting one rank delays all of them.

use std::io;

/// The affinity mask of a pinned thread, and its mask before pinning.
#[cfg(target_os = "linux")]
pub struct Affinity {
    original: rustix::thread::CpuSet,
    pinned: rustix::thread::CpuSet,
}

#[cfg(target_os = "linux")]
impl Affinity {
    /// Pins the calling thread, and threads that it starts later, to `threads` processors from
    /// number `first` of those that it may use. Returns `None` and pins nothing if it may use fewer
    /// than `required`, the number of all ranks.
    pub fn pin(first: usize, threads: usize, required: usize) -> io::Result<Option<Self>> {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let original = sched_getaffinity(None)?;
        if required > original.count() as usize {
            return Ok(None);
        }
        let mut pinned = CpuSet::new();
        let allowed = (0..CpuSet::MAX_CPU).filter(|processor| original.is_set(*processor));
        allowed.skip(first).take(threads).for_each(|processor| pinned.set(processor));
        sched_setaffinity(None, &pinned)?;
        Ok(Some(Self { original, pinned }))
    }

    /// Runs `start` with the original affinity, which threads that it starts inherit. Must be
    /// called on the pinned thread.
    pub fn run_unpinned<T>(&self, start: impl FnOnce() -> T) -> T {
        // Affinity is an optimization, so a failure is ignored.
        let _ = rustix::thread::sched_setaffinity(None, &self.original);
        let result = start();
        let _ = rustix::thread::sched_setaffinity(None, &self.pinned);
        result
    }
}

/// Ranks require Linux; other systems pin no thread.
#[cfg(not(target_os = "linux"))]
pub struct Affinity;

#[cfg(not(target_os = "linux"))]
impl Affinity {
    /// Returns `None`.
    pub fn pin(_first: usize, _threads: usize, _required: usize) -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Runs `start`.
    pub fn run_unpinned<T>(&self, start: impl FnOnce() -> T) -> T {
        start()
    }
}

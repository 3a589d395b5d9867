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
    /// Pins the calling thread, and threads that it starts later, to partition `index` of `count`
    /// disjoint partitions of `threads` processors each. Returns `None` and pins nothing if there
    /// are fewer than `count * threads` processors.
    pub fn pin(index: usize, count: usize, threads: usize) -> io::Result<Option<Self>> {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let original = sched_getaffinity(None)?;
        if count.saturating_mul(threads) > original.count() as usize {
            return Ok(None);
        }
        let mut pinned = CpuSet::new();
        let allowed = (0..CpuSet::MAX_CPU).filter(|processor| original.is_set(*processor));
        allowed.skip(index * threads).take(threads).for_each(|processor| pinned.set(processor));
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
    pub fn pin(_index: usize, _count: usize, _threads: usize) -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Runs `start`.
    pub fn run_unpinned<T>(&self, start: impl FnOnce() -> T) -> T {
        start()
    }
}

//! [`Affinity`]: processors that only the computing threads of one rank run on.
//!
//! Ranks wait for each other many times per step, so one whose processor is shared slows all down.

use std::io;

/// The processors of a thread before it was pinned.
#[cfg(target_os = "linux")]
pub struct Affinity {
    all: rustix::thread::CpuSet,
    own: rustix::thread::CpuSet,
}

#[cfg(target_os = "linux")]
impl Affinity {
    /// Pins the calling thread, and those that it starts from now on, to the processors of place
    /// `place` of `places` with `threads` threads each. `None`, without a change, if there are too few
    /// processors for that.
    pub fn pin(place: usize, places: usize, threads: usize) -> io::Result<Option<Self>> {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let all = sched_getaffinity(None)?;
        if places.saturating_mul(threads) > all.count() as usize {
            return Ok(None);
        }
        let mut own = CpuSet::new();
        let allowed = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor));
        allowed.skip(place * threads).take(threads).for_each(|processor| own.set(processor));
        sched_setaffinity(None, &own)?;
        Ok(Some(Self { all, own }))
    }

    /// Starts threads that are not pinned, from a pinned one.
    pub fn unpinned<T>(&self, start: impl FnOnce() -> T) -> T {
        // A failure leaves a thread where it is, which is slower, but not wrong.
        let _ = rustix::thread::sched_setaffinity(None, &self.all);
        let result = start();
        let _ = rustix::thread::sched_setaffinity(None, &self.own);
        result
    }
}

/// Ranks exist on Linux only.
#[cfg(not(target_os = "linux"))]
pub struct Affinity;

#[cfg(not(target_os = "linux"))]
impl Affinity {
    /// Pins no thread.
    pub fn pin(_place: usize, _places: usize, _threads: usize) -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Starts threads.
    pub fn unpinned<T>(&self, start: impl FnOnce() -> T) -> T {
        start()
    }
}

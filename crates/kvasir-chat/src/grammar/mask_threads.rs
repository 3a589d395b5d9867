//! Helper threads that compute grammar masks in the background, overlapped with the device's
//! forward pass.
//!
//! A follower that needs a mask which no thread has begun computes it inline, so the threads affect
//! latency only, never results.

use std::{
    collections::VecDeque,
    fmt::Debug,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// A pool of mask threads with one FIFO queue. Dropping it ends the threads.
#[derive(Debug)]
pub(crate) struct MaskThreads(Arc<MaskQueue>);

#[derive(Debug, Default)]
struct MaskQueue {
    jobs: Mutex<Jobs>,
    is_filled: Condvar,
}

/// Per-sequence state whose next mask can be computed in advance.
pub(crate) trait LookAhead: Debug + Send {
    /// Computes the mask of the output announced last, unless already done.
    fn look_ahead(&mut self);
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Arc<Mutex<dyn LookAhead>>>,
    is_closed: bool,
}

/// Locks, ignoring poisoning. The grammar library catches its own panics, so guarded state is never
/// half changed.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MaskThreads {
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let mask_threads = Self(Arc::default());
        for _ in 0..threads {
            let queue = mask_threads.0.clone();
            thread::Builder::new().name("masks".into()).spawn(move || queue.work())?;
        }
        Ok(mask_threads)
    }

    /// Enqueues `state` to compute its next mask.
    pub(super) fn enqueue(&self, state: Arc<Mutex<dyn LookAhead>>) {
        locked(&self.0.jobs).waiting.push_back(state);
        self.0.is_filled.notify_one();
    }
}

impl Drop for MaskThreads {
    fn drop(&mut self) {
        locked(&self.0.jobs).is_closed = true;
        self.0.is_filled.notify_all();
    }
}

impl MaskQueue {
    fn work(&self) {
        let mut jobs = locked(&self.jobs);
        while !jobs.is_closed {
            match jobs.waiting.pop_front() {
                Some(state) => {
                    drop(jobs);
                    locked(&state).look_ahead();
                    jobs = locked(&self.jobs);
                }
                None => jobs = self.is_filled.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

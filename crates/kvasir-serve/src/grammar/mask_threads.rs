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
pub(crate) struct Helper(Arc<Desk>);

#[derive(Debug, Default)]
struct Desk {
    jobs: Mutex<Jobs>,
    come: Condvar,
}

/// Per-sequence state whose next mask can be computed in advance.
pub(crate) trait LookAhead: Debug + Send {
    /// Computes the mask of the output announced last, unless already done.
    fn look_ahead(&mut self);
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Arc<Mutex<dyn LookAhead>>>,
    over: bool,
}

/// Locks, ignoring poisoning. The grammar library catches its own panics, so guarded state is never
/// half changed.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helper {
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let helper = Self(Arc::default());
        for _ in 0..threads {
            let desk = helper.0.clone();
            thread::Builder::new().name("masks".into()).spawn(move || desk.work())?;
        }
        Ok(helper)
    }

    /// Enqueues `state` to compute its next mask.
    pub(super) fn ask(&self, state: Arc<Mutex<dyn LookAhead>>) {
        locked(&self.0.jobs).waiting.push_back(state);
        self.0.come.notify_one();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        locked(&self.0.jobs).over = true;
        self.0.come.notify_all();
    }
}

impl Desk {
    fn work(&self) {
        let mut jobs = locked(&self.jobs);
        while !jobs.over {
            match jobs.waiting.pop_front() {
                Some(state) => {
                    drop(jobs);
                    locked(&state).look_ahead();
                    jobs = locked(&self.jobs);
                }
                None => jobs = self.come.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

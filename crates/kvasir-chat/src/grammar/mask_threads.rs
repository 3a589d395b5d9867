//! Helper threads that compute grammar masks in the background, overlapped with the device's
//! forward pass.
//!
//! A follower that needs a mask which no thread has begun computes it inline, so the threads affect
//! latency only, never results.

use kvasir_kv::Token;
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
    /// The output announced last.
    fn announced(&mut self) -> &mut AnnouncedOutput;

    /// Computes and keeps the mask after `output`.
    fn compute(&mut self, output: &[Token]);
}

/// An output whose mask will be requested next. The default is none.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedOutput {
    output: Vec<Token>,
    is_pending: bool,
}

impl AnnouncedOutput {
    /// Withdraws the announcement: the mask has been requested.
    pub(super) fn withdraw(&mut self) {
        self.is_pending = false;
    }
}

/// Computes the mask of the output announced last, unless it has been requested already.
fn look_ahead(state: &mut dyn LookAhead) {
    if state.announced().is_pending {
        let output = std::mem::take(&mut state.announced().output);
        state.compute(&output);
        state.announced().output = output;
    }
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

    /// Announces that the mask after `output` will be requested next, and enqueues `state` to compute
    /// it.
    pub(super) fn announce<S: LookAhead + 'static>(&self, state: &Arc<Mutex<S>>, output: &[Token]) {
        let mut locked_state = locked(state);
        let announced = locked_state.announced();
        announced.output.clear();
        announced.output.extend_from_slice(output);
        announced.is_pending = true;
        drop(locked_state);
        locked(&self.0.jobs).waiting.push_back(state.clone());
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
                    look_ahead(&mut *locked(&state));
                    jobs = locked(&self.jobs);
                }
                None => jobs = self.is_filled.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

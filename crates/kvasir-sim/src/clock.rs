use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Nanoseconds of simulated time, moved on by the device and by whoever waits for something to happen.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Now.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Moves on to `to`; never back.
    pub fn advance(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }
}

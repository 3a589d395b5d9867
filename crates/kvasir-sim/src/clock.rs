//! The simulated clock: a shared nanosecond counter for discrete-event simulation.
//!
//! Ordering: `Relaxed` suffices, because the counter publishes no other memory and `fetch_max`
//! keeps it monotonic.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Nanoseconds of simulated time, shared by clones. Advanced by the device, and by a driver that
/// waits for the next event.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Current time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Advances to `to`; never backwards.
    pub fn advance(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }
}

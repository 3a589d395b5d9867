//! The machine's monotonic clock, which front and workers share: timestamps of one are valid in the
//! other.

use kvasir_engine::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or_default().saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or_default())
}

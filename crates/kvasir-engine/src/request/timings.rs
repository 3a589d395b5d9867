//! Time as the engine knows it: nanoseconds on the caller's clock, and the timestamps of a request.

use serde::{Deserialize, Serialize};

/// Nanoseconds on the caller's clock.
pub type Nanos = u64;

/// Timestamps of a request's lifecycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Added to the core.
    pub arrived: Nanos,
    /// First admission; not changed by preemption.
    pub admitted: Option<Nanos>,
    /// First output token committed on the host.
    pub first_token: Option<Nanos>,
    /// Newest output token committed on the host.
    pub last_token: Option<Nanos>,
    /// Finished.
    pub finished: Option<Nanos>,
}

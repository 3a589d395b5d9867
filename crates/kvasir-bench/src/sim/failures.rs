//! Failure model of replicas: exponential times between failures, and a constant restart time.

use crate::sim::replica::Replica;
use crate::workload::rng::WorkloadRng;
use kvasir_engine::Nanos;

/// Failures of replicas. A failed replica loses its cache; its requests continue on others.
pub struct Failures<'a> {
    /// Mean time from the start or restart of a replica to its next failure (MTBF), in seconds.
    pub mtbf_seconds: f64,
    /// Time from a failure until the replica accepts requests again, in seconds.
    pub restart_seconds: f64,
    /// Builds a new replica with this index. If it returns `None`, the failed replica stays lost.
    pub rebuild: Box<dyn FnMut(usize) -> Option<Replica> + 'a>,
}

/// Draws exponential times between failures, independently for each replica.
#[derive(Debug)]
pub(crate) struct FailureTimes {
    mtbf_seconds: f64,
    replicas: Vec<WorkloadRng>,
}

/// Longest time to a failure, in seconds: far below the range of [`Nanos`].
const MAX_SECONDS: f64 = 4e9;

impl FailureTimes {
    pub(crate) fn new(mtbf_seconds: f64, replicas: usize, seed: u64) -> Self {
        let rng = |index| WorkloadRng::new(seed ^ 0xFA11 ^ (index as u64) << 32);
        Self { mtbf_seconds, replicas: (0..replicas).map(rng).collect() }
    }

    /// The time of the next failure of a replica that starts at `now`.
    pub(crate) fn next(&mut self, replica: usize, now: Nanos) -> Nanos {
        let seconds = self.replicas[replica].exponential(self.mtbf_seconds).min(MAX_SECONDS);
        now.saturating_add(nanos(seconds))
    }
}

/// Converts seconds to nanoseconds.
pub(crate) fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9) as Nanos
}

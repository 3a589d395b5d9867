//! Failures of replicas at a rate: when each replica fails, and when it serves again.

use crate::sim::replica::Replica;
use crate::workload::rng::WorkloadRng;
use kvasir_engine::Nanos;

/// Failures of replicas. A failed replica loses its cache; its requests continue on others.
pub struct Failures<'a> {
    /// Mean time between the start of a replica and its next failure, in seconds.
    pub mean_seconds: f64,
    /// Time from a failure until the replica accepts requests again, in seconds.
    pub restart_seconds: f64,
    /// Builds the replica of this index anew; without one it stays lost.
    pub rebuild: Box<dyn FnMut(usize) -> Option<Replica> + 'a>,
}

/// Draws the times of failures: exponential, independent for each replica.
#[derive(Debug)]
pub(crate) struct FailureTimes {
    mean: f64,
    replicas: Vec<WorkloadRng>,
}

/// Longest time to a failure, in seconds: far below what the clock holds.
const MAX_SECONDS: f64 = 4e9;

impl FailureTimes {
    pub(crate) fn new(mean: f64, replicas: usize, seed: u64) -> Self {
        let rng = |index| WorkloadRng::new(seed ^ 0xFA11 ^ (index as u64) << 32);
        Self { mean, replicas: (0..replicas).map(rng).collect() }
    }

    /// The time of the next failure of a replica that starts at `now`.
    pub(crate) fn next(&mut self, replica: usize, now: Nanos) -> Nanos {
        let seconds = self.replicas[replica].exponential(self.mean).min(MAX_SECONDS);
        now.saturating_add(nanos(seconds))
    }
}

/// Nanoseconds of a duration in seconds.
pub(crate) fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9) as Nanos
}

//! Engine stall detection for readiness probes: time since the last completed step while answers
//! are pending.
//!
//! Ordering: one `Relaxed` atomic timestamp; nothing else is published through it.

use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Time of the last progress: a completed step, or the arrival of the first pending answer.
///
/// A hung device reports nothing, so silence while answers are due is the only symptom.
pub(crate) struct StallDetector {
    started: Instant,
    /// Nanoseconds since `started`.
    last_progress: AtomicU64,
    timeout: Duration,
}

impl StallDetector {
    pub(crate) fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), last_progress: AtomicU64::new(0), timeout })
    }

    pub(crate) fn record_progress(&self) {
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_progress.store(now, Ordering::Relaxed);
    }

    /// Time since the last progress, if it exceeds the limit.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let last_progress = Duration::from_nanos(self.last_progress.load(Ordering::Relaxed));
        Some(self.started.elapsed().saturating_sub(last_progress)).filter(|silence| *silence > self.timeout)
    }
}

/// Engine observer that records completed steps.
pub(crate) struct StallObserver(pub(crate) Arc<StallDetector>);

impl Observer for StallObserver {
    fn scheduled(&mut self, _: &Core, _: &Step) {}

    fn completed(&mut self, _: &Core, _: &Step, result: &Result<(), StepError>, _: Nanos) {
        if result.is_ok() {
            self.0.record_progress();
        }
    }
}

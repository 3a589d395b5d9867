use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// When the engine last did what somebody waited for: a step came back, or, before the first, somebody began to wait.
///
/// An engine whose device hangs says nothing about it. That it says nothing while answers are due is what tells.
pub(crate) struct Pulse {
    started: Instant,
    /// Nanoseconds from then on.
    last: AtomicU64,
    patience: Duration,
}

impl Pulse {
    pub(crate) fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), last: AtomicU64::new(0), patience })
    }

    pub(crate) fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// How long there has been silence, if that is longer than anybody should wait.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let last = Duration::from_nanos(self.last.load(Ordering::Relaxed));
        Some(self.started.elapsed().saturating_sub(last)).filter(|silence| *silence > self.patience)
    }
}

/// Hears the engine's steps.
pub(crate) struct Listener(pub(crate) Arc<Pulse>);

impl Observer for Listener {
    fn scheduled(&mut self, _: &Core, _: &Step) {}

    fn completed(&mut self, _: &Core, _: &Step, result: &Result<(), StepError>, _: Nanos) {
        if result.is_ok() {
            self.0.beat();
        }
    }
}

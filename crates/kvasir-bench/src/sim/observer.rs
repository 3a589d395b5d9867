//! `StepObserver`: passes the steps of a replica to the counters, the step account, the fleet
//! series and the tracers.

use crate::sim::fleet_series::{FleetSeries, ReplicaSample};
use crate::sim::report::Count;
use crate::sim::step_account::StepAccount;
use kvasir_engine::{Core, Nanos, Observer, TraceSink, Tracer};
use kvasir_exec::{Step, StepError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tracers of the steps of one replica.
pub(crate) type Tracers = Vec<Tracer<Box<dyn TraceSink>>>;

/// Counters and time series that the observers of all replicas share with the driver.
#[derive(Clone)]
pub(crate) struct SharedMetrics {
    pub(crate) count: Arc<Mutex<Count>>,
    /// `None` without a viewer page.
    pub(crate) series: Option<Arc<Mutex<FleetSeries>>>,
}

/// Locks a mutex; ignores poisoning.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Observer of the engine of one replica.
pub(crate) struct StepObserver {
    /// Index of the replica.
    pub(crate) replica: usize,
    pub(crate) shared: SharedMetrics,
    pub(crate) account: Arc<Mutex<StepAccount>>,
    pub(crate) tracers: Tracers,
    pub(crate) block_size: u32,
}

impl Observer for StepObserver {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        let record = core.record();
        lock(&self.shared.count).step(record, step, self.block_size);
        if let Some(series) = &self.shared.series {
            let (waiting, running) = (record.waiting.into(), record.running.into());
            let mut sample = ReplicaSample { steps: 1, waiting, running, ..ReplicaSample::default() };
            for admission in &record.admitted {
                sample.prompt += core.sequence(admission.request).map_or(0, |new| new.prompt_len().into());
                sample.cached += u64::from(admission.hit);
            }
            lock(series).add(self.replica, record.at, sample);
        }
        self.tracers.iter_mut().for_each(|tracer| tracer.scheduled(core, step));
    }

    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, now: Nanos) {
        match result {
            Ok(()) => lock(&self.account).completed(step),
            Err(_) => lock(&self.shared.count).report.failed_steps += 1,
        }
        self.tracers.iter_mut().for_each(|tracer| tracer.completed(core, step, result, now));
    }
}

impl Drop for StepObserver {
    fn drop(&mut self) {
        // Tracers hold back their newest record until it is complete.
        self.tracers.drain(..).for_each(|tracer| drop(tracer.finish()));
    }
}

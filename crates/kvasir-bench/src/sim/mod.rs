//! `kvasir sim`: discrete-event simulation of the real engine core over a device cost model.
//!
//! Simulates one engine, or several replicas behind the router of `kvasir serve --dp`. The event
//! loop is in `driver`.
//!
//! A run is deterministic in its seed: no wall clock is read. Guarded by `tests/sim.rs` and
//! `tests/fleet.rs`.

pub(crate) mod driver;
pub(crate) mod figures;
pub(crate) mod histogram;
pub(crate) mod replica;
pub(crate) mod replica_report;
pub(crate) mod report;
pub(crate) mod series;

pub use crate::sim::histogram::{Histogram, Percentiles};
pub use crate::sim::replica::Replica;
pub use crate::sim::replica_report::ReplicaReport;
pub use crate::sim::report::{MachineFigure, Outcome, Report, RequestTimes, SimulatedMachine};

use crate::sim::driver::Driver;
use crate::sim::report::Count;
use crate::trace::{Lines, Recording};
use crate::workload::Workload;
use kvasir_engine::{Core, DraftStats, Engine, Nanos, Observer, Route, StepTrace, TraceSink, Tracer};
use kvasir_exec::{Step, StepError};
use kvasir_sim::{Clock, CostDevice, Totals};
use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// Configuration of one simulation.
pub struct Run<'a> {
    /// The replicas, at least one. Under [`Route::Prefix`] several must record KV events
    /// ([`Core::record_kv_events`]).
    pub replicas: Vec<Replica>,
    /// Routing policy; without effect for a single replica.
    pub route: Route,
    /// Source of requests.
    pub workload: &'a mut dyn Workload,
    /// Half-open range of steps of the first replica kept in memory for the viewer.
    pub window: Range<u64>,
    /// Trace file that receives all steps of the first replica.
    pub lines: Option<Lines>,
    /// Share of requests, in thousandths, whose client disconnects before the answer is complete.
    pub aborts: u32,
    /// Seed of the disconnects.
    pub seed: u64,
}

/// Results of a simulation.
pub struct Finished {
    /// Aggregate metrics.
    pub report: Report,
    /// Recorded steps of `Run::window`.
    pub steps: Vec<StepTrace>,
    /// Index of the first recorded step.
    pub first: u64,
    /// Plot data for the viewer page.
    pub plots: serde_json::Value,
    /// Request names by tag, where the workload names them.
    pub names: Vec<(u64, String)>,
}

/// Observer that feeds the counters and the step tracers.
struct SeriesObserver {
    count: Arc<Mutex<Count>>,
    tracers: Vec<Tracer<Box<dyn TraceSink>>>,
    block: u32,
}

impl Observer for SeriesObserver {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        count.step(core.record(), step, self.block);
        self.tracers.iter_mut().for_each(|tracer| tracer.scheduled(core, step));
    }

    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, now: Nanos) {
        if result.is_err() {
            self.count.lock().unwrap_or_else(PoisonError::into_inner).report.failed_steps += 1;
        }
        self.tracers.iter_mut().for_each(|tracer| tracer.completed(core, step, result, now));
    }
}

impl Drop for SeriesObserver {
    fn drop(&mut self) {
        // Tracers hold back their newest record until it is complete.
        self.tracers.drain(..).for_each(|tracer| drop(tracer.finish()));
    }
}

/// An engine over a device, on the virtual clock that they share.
pub fn engine(core: Core, device: CostDevice, clock: &Clock, overlap: bool) -> Engine<CostDevice> {
    let clock = clock.clone();
    Engine::new(core, device, move || clock.now()).overlap(overlap)
}

/// Runs a workload to its end, or until no replica has a working device.
///
/// `progress` receives the number of ended requests and the simulated time after each event; the
/// run stops when it returns `false`.
pub fn run(run: Run<'_>, progress: &mut dyn FnMut(u64, Nanos) -> bool) -> Finished {
    let count = Arc::new(Mutex::new(Count::default()));
    let recording = Recording::default();
    let Run { replicas, route, workload, window, lines, aborts, seed } = run;
    let first = window.start;
    let mut tracers: Vec<Tracer<Box<dyn TraceSink>>> = Vec::new();
    if !window.is_empty() {
        tracers.push(Tracer::new(Box::new(recording.clone()), window));
    }
    tracers.extend(lines.map(|lines| Tracer::new(Box::new(lines) as Box<dyn TraceSink>, 0..u64::MAX)));
    let observe = |mut replica: Replica| {
        let block = replica.engine.core().cache().shape().block_size;
        let tracers = std::mem::take(&mut tracers);
        replica.engine.add_observer(Box::new(SeriesObserver { count: Arc::clone(&count), tracers, block }));
        replica
    };
    let replicas: Vec<Replica> = replicas.into_iter().map(observe).collect();
    let mut driver = Driver::new(replicas, route, workload, Arc::clone(&count), (aborts, seed));
    let exit = driver.drive(progress);
    let (now, names) = (driver.now(), std::mem::take(&mut driver.names));
    let mut spent = Totals::default();
    let mut drafts = DraftStats::default();
    for engine in driver.engines() {
        spent += engine.executor().spent();
        drafts += engine.core().draft_stats();
    }
    let machine = driver
        .engines()
        .next()
        .map(|engine| (*engine.executor().preset(), engine.core().cache().shape().capacity));
    let replicas = driver.reports(now);
    drop(driver);
    let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
    count.report.broke_off = exit;
    let Some((preset, capacity)) = machine else {
        let report = Report { broke_off: Some("there is no replica".into()), ..Report::default() };
        return Finished { report, steps: Vec::new(), first, plots: serde_json::Value::Null, names };
    };
    let mut report = count.report(now, spent, (&preset, capacity), replicas);
    report.speculation = (drafts.verified > 0).then_some(drafts);
    let plots = count.plots(&report);
    Finished { report, steps: recording.take(), first, plots, names }
}

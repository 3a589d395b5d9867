//! `kvasir sim`: discrete-event simulation of the real engine core over a device cost model.
//!
//! Simulates one engine, or several replicas behind the router of `kvasir serve --dp`, with
//! disaggregated prefill and failures of replicas. The event loop is in `driver`.
//!
//! A run is deterministic in its seed: no wall clock is read. Guarded by `tests/sim.rs`,
//! `tests/fleet.rs` and `tests/roles.rs`.

pub(crate) mod computed_blocks;
pub(crate) mod driver;
pub(crate) mod event_queue;
pub(crate) mod failures;
pub(crate) mod figures;
pub(crate) mod fleet_series;
pub(crate) mod histogram;
pub(crate) mod links;
pub(crate) mod observer;
pub(crate) mod open_request;
pub(crate) mod replica;
pub(crate) mod replica_report;
pub(crate) mod report;
pub(crate) mod series;
pub(crate) mod step_account;
pub(crate) mod time_breakdown;

pub use crate::sim::failures::Failures;
pub use crate::sim::histogram::{Histogram, Percentiles};
pub use crate::sim::replica::Replica;
pub use crate::sim::replica_report::{ReplicaReport, TransferredTokens};
pub use crate::sim::report::{MachineFigure, Outcome, Report, RequestTimes, SimulatedMachine};
pub use crate::sim::time_breakdown::{RoleTime, TimeBreakdown};

use crate::sim::driver::{Driver, DriverSetup};
use crate::sim::fleet_series::FleetSeries;
use crate::sim::links::ReplicaLinks;
use crate::sim::observer::{SharedMetrics, Tracers, lock};
use crate::sim::replica::SimulatedReplica;
use crate::trace::{Lines, Recording};
use crate::workload::Workload;
use kvasir_engine::{Core, Engine, Nanos, Role, Route, StepTrace, TraceSink, Tracer};
use kvasir_sim::{Clock, CostDevice, Link};
use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

/// Configuration of one simulation.
pub struct Run<'a> {
    /// The replicas, at least one. Under [`Route::Prefix`] several must record KV events
    /// ([`Core::record_kv_events`]). With KV events the report distinguishes lost prefixes from
    /// new prompt tokens.
    pub replicas: Vec<Replica>,
    /// Routing policy; without effect for a single replica.
    pub route: Route,
    /// Roles, link and failures of the replicas.
    pub fleet: FleetModel<'a>,
    /// Source of requests.
    pub workload: &'a mut dyn Workload,
    /// Half-open range of steps of the first replica kept in memory for the viewer.
    pub window: Range<u64>,
    /// Trace file that receives all steps of the first replica.
    pub lines: Option<Lines>,
    /// Share of requests, in thousandths, whose client disconnects before the answer is complete.
    pub aborts: u32,
    /// Seed of the disconnects and failures.
    pub seed: u64,
}

/// Roles, link and failures of a fleet. By default all replicas run both phases, and none fails.
#[derive(Default)]
pub struct FleetModel<'a> {
    /// Roles of the replicas; [`Role::Both`] beyond the end of the list.
    pub roles: Vec<Role>,
    /// The link between replicas, for K/V transfers. Without it, decode replicas compute prompts
    /// again.
    pub link: Option<Link>,
    /// Failure model; `None` if no replica fails.
    pub failures: Option<Failures<'a>>,
    /// Whether to record time series per replica for the viewer page.
    pub records_series: bool,
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
    let recording = Recording::default();
    let Run { replicas, route, fleet, workload, window, lines, aborts, seed } = run;
    let FleetModel { mut roles, link, failures, records_series } = fleet;
    roles.resize(replicas.len(), Role::Both);
    let series = records_series.then(|| Arc::new(Mutex::new(FleetSeries::new(roles.clone()))));
    let shared = SharedMetrics { count: Arc::default(), series };
    let first = window.start;
    let mut tracers = Tracers::new();
    if !window.is_empty() {
        tracers.push(Tracer::new(Box::new(recording.clone()), window));
    }
    tracers.extend(lines.map(|lines| Tracer::new(Box::new(lines) as Box<dyn TraceSink>, 0..u64::MAX)));
    let replicas = replicas.into_iter().zip(roles).enumerate().map(|(index, (replica, role))| {
        SimulatedReplica::new(replica, index, role, &shared, std::mem::take(&mut tracers))
    });
    let replicas: Vec<SimulatedReplica> = replicas.collect();
    let replica_count = replicas.len();
    let links = replicas.first().zip(link).map(|(replica, link)| {
        let preset = replica.engine.executor().preset();
        ReplicaLinks::new(link, preset.kv_token_bytes(), preset.ranks, replica_count)
    });
    let setup =
        DriverSetup { replicas, route, workload, failures, links, shared: shared.clone(), aborts, seed };
    let mut driver = Driver::new(setup);
    let exit = driver.drive(progress);
    let (now, names) = (driver.now(), std::mem::take(&mut driver.names));
    let (machine, (spent, drafts)) = (driver.machine(), driver.totals());
    let replicas = driver.reports(now);
    drop(driver);
    let mut count = lock(&shared.count);
    count.report.broke_off = exit;
    let Some((preset, capacity)) = machine else {
        let report = Report { broke_off: Some("there is no replica".into()), ..Report::default() };
        return Finished { report, steps: Vec::new(), first, plots: serde_json::Value::Null, names };
    };
    let mut report = count.report(now, spent, (&preset, capacity), replicas);
    report.speculation = (drafts.verified > 0).then_some(drafts);
    let mut plots = count.plots(&report);
    if let Some(series) = &shared.series {
        plots["fleet"] = lock(series).drawn(now);
    }
    Finished { report, steps: recording.take(), first, plots, names }
}

//! One replica of a simulation: an engine on a clock of its own. It holds back the results of its
//! newest step until the simulated time reaches the end of that step.

use crate::sim::observer::{SharedCounts, StepObserver, Tracers, lock};
use crate::sim::open_request::OpenRequest;
use crate::sim::replica_report::ReplicaReport;
use crate::sim::report::Count;
use crate::sim::step_account::StepAccount;
use crate::sim::time_use::TimeUse;
use kvasir_engine::{DraftStats, Engine, KvExport, Nanos, RequestId, Role, Summary, Turn};
use kvasir_kv::KvEvent;
use kvasir_sim::{Clock, CostDevice, Totals};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// An engine over a simulated device, and the virtual clock that they share.
pub struct Replica {
    /// Scheduler, cache and queue under test, over the device cost model; from
    /// [`engine`](crate::sim::engine).
    pub engine: Engine<CostDevice>,
    /// The replica's own clock, which no other replica may share.
    pub clock: Clock,
}

/// State of a live request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Live {
    pub(crate) last_token: Option<Nanos>,
    outputs: u32,
    abort_after: Option<u32>,
}

/// Results of a step that are not yet delivered to router and workload.
#[derive(Default)]
pub(crate) struct Results {
    /// Requests that ended, with the state that the driver had of them.
    pub(crate) ended: Vec<(Summary, Option<OpenRequest>)>,
    pub(crate) kv_events: Vec<KvEvent>,
    pub(crate) exports: Vec<KvExport>,
}

/// A replica with its live requests and its report.
pub(crate) struct SimulatedReplica {
    pub(crate) engine: Engine<CostDevice>,
    pub(crate) clock: Clock,
    pub(crate) role: Role,
    pub(crate) account: Arc<Mutex<StepAccount>>,
    exports: Option<Arc<Mutex<Vec<KvExport>>>>,
    live: Vec<Live>,
    pub(crate) open: HashMap<RequestId, OpenRequest>,
    /// Requests to be handed off, by tag.
    pub(crate) handing_off: HashMap<u64, RequestId>,
    /// Those of them whose prompts are exported.
    pub(crate) exported: Vec<RequestId>,
    /// Runs that were moved, whose end is not yet reported.
    moved: HashSet<RequestId>,
    pub(crate) results: Results,
    /// Queue length that is included in the driver's `waiting`.
    pub(crate) counted_waiting: usize,
    /// Whether a request has arrived since the last step.
    pub(crate) has_arrivals: bool,
    /// Whether its next turn is scheduled.
    pub(crate) is_scheduled: bool,
    /// Whether it fails at its next turn.
    pub(crate) is_failing: bool,
    /// When it accepts requests again, if it has failed.
    pub(crate) down_until: Option<Nanos>,
    /// Number of failures, so that transfers to an earlier process are dropped.
    pub(crate) generation: u32,
    pub(crate) report: ReplicaReport,
    /// Of the engines before its failures.
    earlier: Earlier,
}

/// Totals of a replica before its failures.
#[derive(Clone, Debug, Default)]
struct Earlier {
    device: Totals,
    drafts: DraftStats,
    computed: TimeUse,
}

impl SimulatedReplica {
    pub(crate) fn new(
        replica: Replica,
        index: usize,
        role: Role,
        shared: &SharedCounts,
        tracers: Tracers,
    ) -> Self {
        let Replica { mut engine, clock } = replica;
        let account = Arc::new(Mutex::new(StepAccount::new(*engine.executor().preset())));
        engine.add_observer(Box::new(StepObserver {
            replica: index,
            shared: shared.clone(),
            account: Arc::clone(&account),
            tracers,
            block: engine.core().cache().shape().block_size,
        }));
        let exports = (role == Role::Prefill).then(|| {
            let exports = Arc::new(Mutex::new(Vec::new()));
            let to = Arc::clone(&exports);
            // Without a prefix cache nothing is exported, and decode replicas compute the prompt.
            drop(engine.export_kv(Arc::new(move |export| lock(&to).push(export))));
            exports
        });
        Self {
            engine,
            clock,
            role,
            account,
            exports,
            live: Vec::new(),
            open: HashMap::new(),
            handing_off: HashMap::new(),
            exported: Vec::new(),
            moved: HashSet::new(),
            results: Results::default(),
            counted_waiting: 0,
            has_arrivals: false,
            is_scheduled: false,
            is_failing: false,
            down_until: None,
            generation: 0,
            report: ReplicaReport { role, ..ReplicaReport::default() },
            earlier: Earlier::default(),
        }
    }

    /// Replaces the engine of a failed replica, whose open requests the driver has taken.
    pub(crate) fn restart(&mut self, replica: Replica, index: usize, shared: &SharedCounts) {
        let earlier =
            Earlier { device: self.device_totals(), drafts: self.draft_stats(), computed: self.computed() };
        let report = ReplicaReport { failures: self.report.failures + 1, ..self.report };
        let (generation, counted_waiting) = (self.generation + 1, self.counted_waiting);
        *self = Self {
            generation,
            counted_waiting,
            report,
            earlier,
            ..Self::new(replica, index, self.role, shared, Tracers::new())
        };
    }

    /// Totals of its device.
    pub(crate) fn device_totals(&self) -> Totals {
        let mut totals = self.earlier.device;
        totals += self.engine.executor().spent();
        totals
    }

    /// Statistics of its drafts.
    pub(crate) fn draft_stats(&self) -> DraftStats {
        let mut stats = self.earlier.drafts.clone();
        stats += self.engine.core().draft_stats();
        stats
    }

    /// Nanoseconds of its completed steps by cause.
    pub(crate) fn computed(&self) -> TimeUse {
        let mut spent = self.earlier.computed;
        spent += lock(&self.account).spent;
        spent
    }

    /// Requests in its queue.
    pub(crate) fn waiting(&self) -> usize {
        self.engine.core().counts().0
    }

    /// Tracks a request that the engine has accepted. Aborts it if its client has disconnected.
    pub(crate) fn track(&mut self, id: RequestId, open: OpenRequest) {
        let at = id.index() as usize;
        if self.live.len() <= at {
            self.live.resize(at + 1, Live::default());
        }
        let history = open.history;
        let (outputs, abort_after) = (history.outputs, history.abort_after);
        self.live[at] = Live { last_token: history.last_token, outputs, abort_after };
        lock(&self.account).begin(id, history.before);
        self.open.insert(id, open);
        if abort_after.is_some_and(|after| outputs >= after) {
            self.engine.abort(id);
        }
    }

    /// Time of the newest output of a request.
    pub(crate) fn last_token(&self, id: RequestId) -> Option<Nanos> {
        self.live.get(id.index() as usize).and_then(|live| live.last_token)
    }

    /// Takes a request that continues on another replica, and aborts its run.
    pub(crate) fn displace(&mut self, id: RequestId) -> Option<OpenRequest> {
        let open = self.open.remove(&id)?;
        self.moved.insert(id);
        self.engine.abort(id);
        Some(open)
    }

    /// Runs one turn of the engine and takes its events.
    pub(crate) fn step(&mut self, count: &Mutex<Count>) -> Result<Turn, String> {
        let turn = self.engine.step();
        self.report.steps += u64::from(turn == Ok(Turn::Ran));
        self.collect(count);
        turn.map_err(|exit| exit.to_string())
    }

    /// Moves the engine's events to the results, records inter-token latencies, and aborts requests
    /// whose client disconnects.
    fn collect(&mut self, count: &Mutex<Count>) {
        let now = self.clock.now();
        let mut disconnected = Vec::new();
        let outbox = self.engine.core_mut().outbox();
        let mut counted = lock(count);
        for event in &outbox.events {
            let Some(live) = self.live.get_mut(event.request.index() as usize) else { continue };
            if event.tokens.len == 0 {
                continue;
            }
            if let Some(last) = live.last_token {
                counted.gap(now.saturating_sub(last));
            }
            live.last_token = Some(now);
            live.outputs += event.tokens.len;
            if event.finish.is_none() && live.abort_after.is_some_and(|after| live.outputs >= after) {
                disconnected.push(event.request);
            }
        }
        drop(counted);
        for &summary in &outbox.ended {
            if !self.moved.remove(&summary.request) {
                self.results.ended.push((summary, self.open.remove(&summary.request)));
            }
        }
        self.results.kv_events.append(&mut outbox.kv_events);
        outbox.clear();
        if let Some(exports) = &self.exports {
            self.results.exports.append(&mut lock(exports));
        }
        if !disconnected.is_empty() {
            disconnected.into_iter().for_each(|id| {
                self.engine.abort(id);
            });
            self.collect(count);
        }
    }
}

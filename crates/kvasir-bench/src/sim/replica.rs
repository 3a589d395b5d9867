//! One replica of a simulation: an engine on a clock of its own. It holds back the results of its
//! newest step until the simulated time reaches the end of that step.

use crate::sim::observer::{SharedMetrics, StepObserver, Tracers, lock};
use crate::sim::open_request::OpenRequest;
use crate::sim::replica_report::ReplicaReport;
use crate::sim::report::Count;
use crate::sim::step_account::StepAccount;
use crate::sim::time_breakdown::TimeBreakdown;
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
    /// Requests that ended; `None` for refused ones.
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
    /// K/V blocks that the engine has exported; `None` unless its role is prefill.
    exports: Option<Arc<Mutex<Vec<KvExport>>>>,
    live: Vec<Live>,
    pub(crate) open: HashMap<RequestId, OpenRequest>,
    /// Requests to be handed off, by tag.
    pub(crate) handing_off: HashMap<u64, RequestId>,
    /// Requests to be handed off whose prompts are exported.
    pub(crate) exported: Vec<RequestId>,
    /// Requests whose runs were aborted by [`Self::detach`], and whose summaries are to be dropped.
    detached: HashSet<RequestId>,
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
    pub(crate) report: ReplicaReport,
    /// Totals of the engines that restarts have replaced.
    earlier: EarlierTotals,
}

/// Totals of the earlier engines of a replica.
#[derive(Clone, Debug, Default)]
struct EarlierTotals {
    device: Totals,
    drafts: DraftStats,
    computed: TimeBreakdown,
}

impl SimulatedReplica {
    pub(crate) fn new(
        replica: Replica,
        index: usize,
        role: Role,
        shared: &SharedMetrics,
        tracers: Tracers,
    ) -> Self {
        let Replica { mut engine, clock } = replica;
        let account = Arc::new(Mutex::new(StepAccount::new(*engine.executor().preset())));
        engine.add_observer(Box::new(StepObserver {
            replica: index,
            shared: shared.clone(),
            account: Arc::clone(&account),
            tracers,
            block_size: engine.core().cache().shape().block_size,
        }));
        let exports = (role == Role::Prefill).then(|| {
            let exports = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&exports);
            // Without a prefix cache this fails: nothing is exported, and decode replicas compute
            // the prompts.
            drop(engine.export_kv(Arc::new(move |export| lock(&sink).push(export))));
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
            detached: HashSet::new(),
            results: Results::default(),
            counted_waiting: 0,
            has_arrivals: false,
            is_scheduled: false,
            is_failing: false,
            down_until: None,
            report: ReplicaReport { role, ..ReplicaReport::default() },
            earlier: EarlierTotals::default(),
        }
    }

    /// Replaces the engine of a failed replica. The caller has taken its open requests.
    pub(crate) fn restart(&mut self, replica: Replica, index: usize, shared: &SharedMetrics) {
        let earlier = EarlierTotals {
            device: self.device_totals(),
            drafts: self.draft_stats(),
            computed: self.computed(),
        };
        let report = ReplicaReport { failures: self.report.failures + 1, ..self.report };
        let counted_waiting = self.counted_waiting;
        *self = Self {
            counted_waiting,
            report,
            earlier,
            ..Self::new(replica, index, self.role, shared, Tracers::new())
        };
    }

    /// Totals of its device, those of earlier engines included.
    pub(crate) fn device_totals(&self) -> Totals {
        let mut totals = self.earlier.device;
        totals += self.engine.executor().spent();
        totals
    }

    /// Statistics of its draft tokens, those of earlier engines included.
    pub(crate) fn draft_stats(&self) -> DraftStats {
        let mut stats = self.earlier.drafts.clone();
        stats += self.engine.core().draft_stats();
        stats
    }

    /// Nanoseconds of its completed steps by cause, those of earlier engines included.
    pub(crate) fn computed(&self) -> TimeBreakdown {
        let mut times = self.earlier.computed;
        times += lock(&self.account).times;
        times
    }

    /// Requests in its queue.
    pub(crate) fn waiting(&self) -> usize {
        self.engine.core().counts().0
    }

    /// Tracks a request that the engine has accepted. Aborts it if its client disconnects at its
    /// current number of outputs.
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

    /// Removes a request that continues on another replica, and aborts its run on this one.
    pub(crate) fn detach(&mut self, id: RequestId) -> Option<OpenRequest> {
        let open = self.open.remove(&id)?;
        self.detached.insert(id);
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
            if !self.detached.remove(&summary.request) {
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

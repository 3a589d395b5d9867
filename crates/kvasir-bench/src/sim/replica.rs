//! One replica of a simulation: an engine on a clock of its own. It holds back the results of its
//! newest step until the simulated time reaches the end of that step.

use crate::sim::replica_report::ReplicaReport;
use crate::sim::report::Count;
use kvasir_engine::{Charge, Engine, Nanos, RequestId, Summary, Turn};
use kvasir_kv::KvEvent;
use kvasir_sim::{Clock, CostDevice};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

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
struct Live {
    last_token: Option<Nanos>,
    outputs: u32,
    abort_after: Option<u32>,
}

/// Results of a step that are not yet delivered to router and workload.
#[derive(Default)]
pub(crate) struct Results {
    /// Requests that ended, with the load that the router charged for them.
    pub(crate) ended: Vec<(Summary, Option<Charge>)>,
    pub(crate) kv_events: Vec<KvEvent>,
}

/// A replica with its live requests and its report.
pub(crate) struct SimulatedReplica {
    pub(crate) engine: Engine<CostDevice>,
    pub(crate) clock: Clock,
    live: Vec<Live>,
    charges: HashMap<RequestId, Charge>,
    pub(crate) results: Results,
    /// Queue length that is included in the driver's `waiting`.
    pub(crate) counted_waiting: usize,
    /// Whether a request has arrived since the last step.
    pub(crate) has_arrivals: bool,
    /// Whether its next turn is scheduled.
    pub(crate) is_scheduled: bool,
    pub(crate) report: ReplicaReport,
}

impl SimulatedReplica {
    pub(crate) fn new(Replica { engine, clock }: Replica) -> Self {
        Self {
            engine,
            clock,
            live: Vec::new(),
            charges: HashMap::new(),
            results: Results::default(),
            counted_waiting: 0,
            has_arrivals: false,
            is_scheduled: false,
            report: ReplicaReport::default(),
        }
    }

    /// Requests in its queue.
    pub(crate) fn waiting(&self) -> usize {
        self.engine.core().counts().0
    }

    /// Tracks a request that the engine has accepted. Aborts it at once if `abort_after` is 0.
    pub(crate) fn track(&mut self, id: RequestId, abort_after: Option<u32>, charge: Charge) {
        let at = id.index() as usize;
        if self.live.len() <= at {
            self.live.resize(at + 1, Live::default());
        }
        self.live[at] = Live { abort_after, ..Live::default() };
        self.charges.insert(id, charge);
        if abort_after == Some(0) {
            self.engine.abort(id);
        }
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
        let mut counted = count.lock().unwrap_or_else(PoisonError::into_inner);
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
            self.results.ended.push((summary, self.charges.remove(&summary.request)));
        }
        self.results.kv_events.append(&mut outbox.kv_events);
        outbox.clear();
        if !disconnected.is_empty() {
            disconnected.into_iter().for_each(|id| {
                self.engine.abort(id);
            });
            self.collect(count);
        }
    }
}

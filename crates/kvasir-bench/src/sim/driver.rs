//! The discrete-event loop of a simulation: arrivals and replicas' turns in order of time.
//!
//! 1. The earliest event is an arrival or the turn of a replica. An arrival is routed and queued; it
//!    wakes its replica.
//! 2. The turn of a replica first delivers the results of its last step: completions release the
//!    router's charges and may add follow-up requests, KV events reach the router.
//! 3. Then `Engine::step` schedules, and the cost device advances the replica's clock by the step's
//!    modeled time. The replica's next turn is at that time.
//! 4. A replica with nothing to run has no turn until a request arrives.
//!
//! Other events are failures and restarts of replicas (`placement`), and arrivals of K/V transfers
//! and of handed-off requests (`hand_off`). A failure takes effect after the step that runs.
//!
//! The router therefore sees the results of a step only once it has ended. A request that arrives
//! while a step runs is scheduled with the next one.

mod hand_off;
mod placement;

use crate::sim::computed_blocks::ComputedBlocks;
use crate::sim::event_queue::EventQueue;
use crate::sim::failures::{FailureTimes, Failures};
use crate::sim::links::ReplicaLinks;
use crate::sim::observer::{SharedMetrics, lock};
use crate::sim::open_request::TransitTimes;
use crate::sim::replica::SimulatedReplica;
use crate::sim::replica_report::ReplicaReport;
use crate::sim::time_breakdown::TimeBreakdown;
use crate::workload::rng::WorkloadRng;
use crate::workload::{At, Job, Workload};
use hand_off::{HandedOffRequest, KvTransfer};
use kvasir_engine::{Core, DraftStats, Finish, Nanos, RoleRouter, Route, RouterConfig, Summary, Turn};
use kvasir_kv::KvEvent;
use kvasir_sim::{Preset, Totals};
use placement::WaitingRequest;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An event other than a step or an arrival from the workload.
enum FleetEvent {
    /// The replica with this index fails.
    Fail(usize),
    /// The restart of the replica with this index ends.
    Restart(usize),
    /// K and V arrive at a replica.
    Import(KvTransfer),
    /// A handed-off request arrives at its decode replica.
    HandOff(Box<HandedOffRequest>),
}

/// Consecutive turns without a step after which the run counts as stuck.
const MAX_STALLED_TURNS: u32 = 1_000_000;
/// Clock advance in nanoseconds when only the passage of time can unblock a request.
const RETRY_NS: u64 = 1_000_000;
/// Bound on requests admitted between two steps and on the queues of all replicas.
///
/// Further requests stay in the workload, so that a burst of any size takes little memory and can
/// be interrupted.
const MAX_WAITING: usize = 1 << 17;
/// New prompt blocks per request for which the filter of computed blocks is sized.
const BLOCKS_PER_REQUEST: u64 = 64;

/// The state of a run.
pub(crate) struct Driver<'a> {
    replicas: Vec<SimulatedReplica>,
    router: RoleRouter,
    /// The next turn of each replica that has one.
    turns: BinaryHeap<Reverse<(Nanos, usize)>>,
    workload: &'a mut dyn Workload,
    /// The workload's next request, peeked but not yet due.
    next_job: Option<Job>,
    /// Requests that completions have added.
    follow_ups: EventQueue<Job>,
    events: EventQueue<FleetEvent>,
    failures: Option<(Failures<'a>, FailureTimes)>,
    links: Option<ReplicaLinks>,
    /// Number of handed-off requests that have not yet arrived at their decode replica.
    in_transit: usize,
    /// Requests that wait because no replica is available.
    unplaced: VecDeque<WaitingRequest>,
    computed_blocks: ComputedBlocks,
    shared: SharedMetrics,
    pub(crate) names: Vec<(u64, String)>,
    /// Share of requests, in thousandths, whose client disconnects.
    aborts: u32,
    rng: WorkloadRng,
    /// Steps of all replicas.
    steps: u64,
    ended: u64,
    /// Requests in the queues of all replicas.
    waiting: usize,
    /// Maximum queue length of a replica.
    max_queued: usize,
    /// Replicas whose queue is full.
    full_replicas: usize,
    /// Time of the newest event.
    now: Nanos,
}

/// Arguments of [`Driver::new`].
pub(crate) struct DriverSetup<'a> {
    pub(crate) replicas: Vec<SimulatedReplica>,
    pub(crate) route: Route,
    pub(crate) workload: &'a mut dyn Workload,
    pub(crate) failures: Option<Failures<'a>>,
    pub(crate) links: Option<ReplicaLinks>,
    pub(crate) shared: SharedMetrics,
    pub(crate) aborts: u32,
    pub(crate) seed: u64,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(setup: DriverSetup<'a>) -> Self {
        let DriverSetup { replicas, route, workload, failures, links, shared, aborts, seed } = setup;
        // One replica needs no routing by prefix, so no prompt is hashed.
        let route = if replicas.len() == 1 { Route::RoundRobin } else { route };
        let core = replicas.first().map(|replica| replica.engine.core());
        let block_size = core.map_or(1, |core| core.cache().shape().block_size);
        let max_queued = core.map_or(1, |core| core.limits().max_waiting as usize).max(1);
        let hits_end_at_checkpoints = core.is_some_and(|core| core.cache().shape().states.is_some());
        let config = RouterConfig { block_size, hits_end_at_checkpoints, ..RouterConfig::new(route) };
        let mut events = EventQueue::default();
        let failures = failures.map(|failures| {
            let mut times = FailureTimes::new(failures.mtbf_seconds, replicas.len(), seed);
            (0..replicas.len()).for_each(|index| events.push(times.next(index, 0), FleetEvent::Fail(index)));
            (failures, times)
        });
        Self {
            router: RoleRouter::new(config, replicas.iter().map(|replica| replica.role).collect()),
            replicas,
            turns: BinaryHeap::new(),
            next_job: workload.next(),
            computed_blocks: ComputedBlocks::new(workload.total().saturating_mul(BLOCKS_PER_REQUEST)),
            workload,
            follow_ups: EventQueue::default(),
            events,
            failures,
            links,
            in_transit: 0,
            unplaced: VecDeque::new(),
            shared,
            names: Vec::new(),
            aborts,
            rng: WorkloadRng::new(seed ^ 0xAB0127),
            steps: 0,
            ended: 0,
            waiting: 0,
            max_queued,
            full_replicas: 0,
            now: 0,
        }
    }

    fn cores(&self) -> impl Iterator<Item = &Core> {
        self.replicas.iter().map(|replica| replica.engine.core())
    }

    /// Preset and KV capacity of the first replica; all replicas have the same.
    pub(crate) fn machine(&self) -> Option<(Preset, u32)> {
        let engine = &self.replicas.first()?.engine;
        Some((*engine.executor().preset(), engine.core().cache().shape().capacity))
    }

    /// Totals of all devices, and statistics of all draft tokens.
    pub(crate) fn totals(&self) -> (Totals, DraftStats) {
        let (mut totals, mut drafts) = (Totals::default(), DraftStats::default());
        for replica in &self.replicas {
            totals += replica.device_totals();
            drafts += &replica.draft_stats();
        }
        (totals, drafts)
    }

    /// The latest time of any replica.
    pub(crate) fn now(&self) -> Nanos {
        self.replicas.iter().map(|replica| replica.clock.now()).max().unwrap_or(self.now)
    }

    /// Report of each replica after `time` simulated nanoseconds.
    pub(crate) fn reports(&self, time: Nanos) -> Vec<ReplicaReport> {
        let report = |replica: &SimulatedReplica| {
            let busy = replica.device_totals().busy_ns as f64;
            let device_busy = if time > 0 { busy / time as f64 } else { 0.0 };
            // A restart may end after the run.
            let after_end = replica.down_until.map_or(0, |until| until.saturating_sub(time)) as f64;
            let restart = (replica.report.restart_ns as f64 - after_end).max(0.0);
            let computed = replica.computed();
            let failed_steps = (busy - computed.total()).max(0.0);
            let used = computed.total() + failed_steps + restart;
            let idle = (time as f64 - used).max(0.0);
            let times = TimeBreakdown { failed_steps, restart, idle, ..computed };
            ReplicaReport { device_busy, time: times.in_seconds(), ..replica.report }
        };
        self.replicas.iter().map(report).collect()
    }

    /// Runs to the end; returns why the run stopped early, if it did.
    pub(crate) fn drive(&mut self, progress: &mut dyn FnMut(u64, Nanos) -> bool) -> Option<String> {
        let mut stalled_turns = 0;
        loop {
            let turn = self.turns.peek().map(|Reverse((at, _))| *at);
            let event = self.events.next_at();
            let has_work = turn.is_some() || self.in_transit > 0 || !self.unplaced.is_empty();
            let arrival = self.next_arrival();
            let is_event_next = event.is_some_and(|event| {
                (arrival.is_some() || has_work)
                    && arrival.is_none_or(|at| event <= at)
                    && turn.is_none_or(|at| event <= at)
            });
            match (arrival, turn) {
                _ if is_event_next => self.run_fleet_event(),
                (Some(at), turn) if turn.is_none_or(|turn| at < turn) => {
                    self.now = self.now.max(at);
                    self.admit_due();
                }
                (_, Some(_)) => {
                    let before = self.steps;
                    if let Err(why) = self.turn() {
                        return Some(why);
                    }
                    stalled_turns = if self.steps > before { 0 } else { stalled_turns + 1 };
                }
                (_, None) if has_work => return Some("no replica is left".into()),
                (_, None) => match self.next_job.as_ref().map(|job| job.at) {
                    // Without a step the step count cannot advance, so a request due before a later
                    // step is admitted now.
                    Some(At::Step(step)) => {
                        self.steps = self.steps.max(step);
                        self.admit_due();
                    }
                    _ => return self.cores().find_map(|core| core.check_invariants().err()),
                },
            }
            if !progress(self.ended, self.now) {
                return Some("interrupted".into());
            }
            if stalled_turns > MAX_STALLED_TURNS {
                return Some("requests wait and no step runs".into());
            }
        }
    }

    /// Due time of the next request that has one, unless the queues are full.
    fn next_arrival(&self) -> Option<Nanos> {
        if self.is_full() {
            return None;
        }
        self.next_time()
    }

    /// Whether due requests must stay in the workload: no replica is available, the queue of a
    /// replica is full, or all queues together hold `MAX_WAITING` requests.
    fn is_full(&self) -> bool {
        self.full_replicas > 0 || !self.unplaced.is_empty() || self.waiting >= MAX_WAITING
    }

    /// Updates the counts of waiting requests after a replica's queue has changed.
    fn update_waiting(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let now = replica.waiting();
        let before = std::mem::replace(&mut replica.counted_waiting, now);
        self.waiting = self.waiting + now - before;
        self.full_replicas =
            self.full_replicas + usize::from(now >= self.max_queued) - usize::from(before >= self.max_queued);
    }

    fn next_time(&self) -> Option<Nanos> {
        let follow = self.follow_ups.next_at();
        let first = self.next_job.as_ref().and_then(|job| match job.at {
            At::Time(at) => Some(at),
            At::Step(_) => None,
        });
        first.into_iter().chain(follow).min()
    }

    /// Admits all due requests up to the queue bound.
    fn admit_due(&mut self) {
        for _ in 0..MAX_WAITING {
            if self.is_full() {
                break;
            }
            let now = self.now;
            let follow = self.follow_ups.next_at().filter(|at| *at <= now);
            let first = match self.next_job.as_ref().map(|job| job.at) {
                Some(At::Time(at)) if at <= now && follow.is_none_or(|follow| at <= follow) => true,
                Some(At::Step(step)) => step <= self.steps,
                _ => false,
            };
            let job = match (first, follow) {
                (true, _) => {
                    let next = self.workload.next();
                    std::mem::replace(&mut self.next_job, next)
                }
                (false, Some(_)) => self.follow_ups.pop().map(|(_, job)| job),
                (false, None) => break,
            };
            if let Some(job) = job {
                self.add(job);
            }
        }
    }

    /// Runs the earliest turn: delivers the replica's results, then runs a step.
    fn turn(&mut self) -> Result<(), String> {
        let Some(Reverse((at, index))) = self.turns.pop() else { return Ok(()) };
        self.now = at;
        self.replicas[index].is_scheduled = false;
        self.deliver(index);
        if self.replicas[index].report.lost {
            return Ok(());
        }
        if self.replicas[index].is_failing {
            self.fail(index);
            return Ok(());
        }
        self.replicas[index].is_scheduled = true;
        self.admit_due();
        let replica = &mut self.replicas[index];
        let turn = replica.step(&self.shared.count);
        self.update_waiting(index);
        let replica = &mut self.replicas[index];
        let had_arrivals = std::mem::take(&mut replica.has_arrivals);
        let now = replica.clock.now();
        let next = match turn {
            Err(why) => return self.mark_lost(index, why),
            Ok(Turn::Ran) => {
                self.steps += 1;
                Some(now)
            }
            Ok(_) if had_arrivals => Some(now),
            Ok(turn) => self.after_no_step(turn, now),
        };
        let replica = &mut self.replicas[index];
        replica.is_scheduled = next.is_some();
        if let Some(at) = next {
            replica.clock.advance(at);
            self.turns.push(Reverse((replica.clock.now(), index)));
        } else {
            self.deliver(index);
        }
        Ok(())
    }

    /// Time of a replica's next turn, after one at `now` that ran no step. `None`: the replica
    /// idles until a request arrives.
    fn after_no_step(&mut self, turn: Turn, now: Nanos) -> Option<Nanos> {
        if turn == Turn::Idle {
            return None;
        }
        match (self.next_job.as_ref().map(|job| job.at), self.next_time()) {
            (Some(At::Step(step)), None) if self.turns.is_empty() => {
                self.steps = self.steps.max(step);
                Some(now)
            }
            (_, Some(at)) if at > now => Some(at.min(now + RETRY_NS)),
            _ => Some(now + RETRY_NS),
        }
    }

    /// Takes a replica whose device is lost out of service. Fails if no other replica is left.
    fn mark_lost(&mut self, index: usize, why: String) -> Result<(), String> {
        let replica = &mut self.replicas[index];
        replica.report.lost = true;
        replica.is_scheduled = true;
        self.turns.push(Reverse((replica.clock.now(), index)));
        self.take_out_of_service(index);
        if self.replicas.iter().all(|replica| replica.report.lost) {
            self.deliver(index);
            return Err(why);
        }
        Ok(())
    }

    /// Runs the next event of the fleet.
    fn run_fleet_event(&mut self) {
        let Some((at, event)) = self.events.pop() else { return };
        self.now = self.now.max(at);
        match event {
            FleetEvent::Fail(index) if self.replicas[index].report.lost => {}
            FleetEvent::Fail(index) => {
                let replica = &mut self.replicas[index];
                // A step that runs is completed first.
                replica.is_failing = true;
                if !replica.is_scheduled {
                    self.fail(index);
                }
            }
            FleetEvent::Restart(index) => self.finish_restart(index),
            FleetEvent::Import(transfer) => self.import(transfer),
            FleetEvent::HandOff(handed_off) => self.start_handed_off(*handed_off),
        }
    }

    /// Delivers the results of a replica's last step to the router, the counters and the workload.
    fn deliver(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        for event in replica.results.kv_events.drain(..) {
            if let KvEvent::BlockStored { hashes, .. } = &event {
                hashes.iter().for_each(|hash| self.computed_blocks.insert(*hash));
            }
            self.router.apply(index, &event);
        }
        let ended = std::mem::take(&mut replica.results.ended);
        for (mut summary, open) in ended {
            let transit = match open {
                Some(open) => {
                    self.release(open.charge, open.target);
                    open.history.complete(&mut summary)
                }
                None => TransitTimes::default(),
            };
            self.replicas[index].handing_off.remove(&summary.tag);
            self.end_request(index, &summary, transit);
        }
        self.send_exports(index);
        self.hand_off_exported(index);
    }

    /// Counts a request that ended on a replica, and schedules the follow-up requests of the
    /// workload.
    fn end_request(&mut self, index: usize, summary: &Summary, transit: TransitTimes) {
        self.ended += 1;
        let now = self.replicas[index].clock.now();
        let (workload, report) = (&mut self.workload, &mut self.replicas[index].report);
        let total = workload.total();
        report.requests += 1;
        report.output_tokens += u64::from(summary.outputs);
        if summary.timings.admitted.is_some() && !matches!(summary.finish, Finish::Refused(_)) {
            report.prompt_tokens += u64::from(summary.prompt);
            report.cached_tokens += u64::from(summary.cached);
        }
        let name = || workload.name(summary.tag).map_or_else(|| summary.tag.to_string(), String::from);
        lock(&self.shared.count).ended(summary, transit, name, total);
        let mut more = Vec::new();
        workload.ended(summary, now, &mut more);
        for job in more {
            let At::Time(at) = job.at else { continue };
            self.follow_ups.push(at, job);
        }
    }
}

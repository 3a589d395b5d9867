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
//! The router therefore sees the results of a step only once it has ended. A request that arrives
//! while a step runs is scheduled with the next one.

use crate::sim::replica::{Replica, SimulatedReplica};
use crate::sim::replica_report::ReplicaReport;
use crate::sim::report::Count;
use crate::workload::rng::WorkloadRng;
use crate::workload::{At, Job, Workload};
use kvasir_engine::{
    Engine, Finish, Nanos, Params, Request, Route, RouteRequest, Router, RouterConfig, SessionId, Turn,
};
use kvasir_sample::Sampling;
use kvasir_sim::CostDevice;
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Mutex, PoisonError},
};

/// A future request, ordered by due time and then by creation.
#[derive(Debug)]
struct PendingArrival {
    at: u64,
    order: u64,
    job: Job,
}

impl PartialEq for PendingArrival {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for PendingArrival {}
impl PartialOrd for PendingArrival {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for PendingArrival {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
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

/// The state of a run.
pub(crate) struct Driver<'a> {
    replicas: Vec<SimulatedReplica>,
    router: Router,
    /// The next turn of each replica that has one.
    turns: BinaryHeap<Reverse<(Nanos, usize)>>,
    workload: &'a mut dyn Workload,
    /// The workload's next request, peeked but not yet due.
    next_job: Option<Job>,
    /// Requests that completions have added.
    follow_ups: BinaryHeap<Reverse<PendingArrival>>,
    /// Number of follow-up requests so far, which breaks ties of due times.
    order: u64,
    count: Arc<Mutex<Count>>,
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

impl<'a> Driver<'a> {
    pub(crate) fn new(
        replicas: Vec<Replica>,
        route: Route,
        workload: &'a mut dyn Workload,
        count: Arc<Mutex<Count>>,
        (aborts, seed): (u32, u64),
    ) -> Self {
        let replicas: Vec<SimulatedReplica> = replicas.into_iter().map(SimulatedReplica::new).collect();
        // One replica needs no routing by prefix, so no prompt is hashed.
        let route = if replicas.len() == 1 { Route::RoundRobin } else { route };
        let core = replicas.first().map(|replica| replica.engine.core());
        let block_size = core.map_or(1, |core| core.cache().shape().block_size);
        let max_queued = core.map_or(1, |core| core.limits().max_waiting as usize).max(1);
        let config = RouterConfig { block_size, ..RouterConfig::new(route) };
        Self {
            router: Router::new(config, replicas.len()),
            replicas,
            turns: BinaryHeap::new(),
            next_job: workload.next(),
            workload,
            follow_ups: BinaryHeap::new(),
            order: 0,
            count,
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

    pub(crate) fn engines(&self) -> impl Iterator<Item = &Engine<CostDevice>> {
        self.replicas.iter().map(|replica| &replica.engine)
    }

    /// The latest time of any replica.
    pub(crate) fn now(&self) -> Nanos {
        self.replicas.iter().map(|replica| replica.clock.now()).max().unwrap_or(self.now)
    }

    /// Report of each replica after `time` simulated nanoseconds; empty for one replica.
    pub(crate) fn reports(&self, time: Nanos) -> Vec<ReplicaReport> {
        let report = |replica: &SimulatedReplica| {
            let busy = replica.engine.executor().spent().busy_ns as f64;
            let device_busy = if time > 0 { busy / time as f64 } else { 0.0 };
            ReplicaReport { device_busy, ..replica.report }
        };
        let several = Some(&self.replicas).filter(|replicas| replicas.len() > 1);
        several.into_iter().flatten().map(report).collect()
    }

    /// Runs to the end; returns why the run stopped early, if it did.
    pub(crate) fn drive(&mut self, progress: &mut dyn FnMut(u64, Nanos) -> bool) -> Option<String> {
        let mut stalled_turns = 0;
        loop {
            let turn = self.turns.peek().map(|Reverse((at, _))| *at);
            match (self.next_arrival(), turn) {
                (Some(at), turn) if turn.is_none_or(|turn| at < turn) => {
                    self.now = self.now.max(at);
                    if let Err(why) = self.admit_due() {
                        return Some(why);
                    }
                }
                (_, Some(_)) => {
                    let before = self.steps;
                    if let Err(why) = self.turn() {
                        return Some(why);
                    }
                    stalled_turns = if self.steps > before { 0 } else { stalled_turns + 1 };
                }
                (_, None) => match self.next_job.as_ref().map(|job| job.at) {
                    // Without a step the step count cannot advance, so a request due before a later
                    // step is admitted now.
                    Some(At::Step(step)) => {
                        self.steps = self.steps.max(step);
                        if let Err(why) = self.admit_due() {
                            return Some(why);
                        }
                    }
                    _ => return self.engines().find_map(|engine| engine.core().check_invariants().err()),
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

    /// Whether due requests must stay in the workload: the queue of a replica is full, or all
    /// queues together hold `MAX_WAITING` requests.
    fn is_full(&self) -> bool {
        self.full_replicas > 0 || self.waiting >= MAX_WAITING
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
        let follow = self.follow_ups.peek().map(|Reverse(arrival)| arrival.at);
        let first = self.next_job.as_ref().and_then(|job| match job.at {
            At::Time(at) => Some(at),
            At::Step(_) => None,
        });
        first.into_iter().chain(follow).min()
    }

    /// Admits all due requests up to the queue bound.
    fn admit_due(&mut self) -> Result<(), String> {
        for _ in 0..MAX_WAITING {
            if self.is_full() {
                break;
            }
            let now = self.now;
            let follow = self.follow_ups.peek().map(|Reverse(arrival)| arrival.at).filter(|at| *at <= now);
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
                (false, Some(_)) => self.follow_ups.pop().map(|Reverse(arrival)| arrival.job),
                (false, None) => break,
            };
            if let Some(job) = job {
                self.add(job)?;
            }
        }
        Ok(())
    }

    /// Routes a request and queues it; wakes its replica.
    fn add(&mut self, job: Job) -> Result<(), String> {
        let arrived = match job.at {
            At::Time(at) => at,
            At::Step(_) => self.now,
        };
        if let Some(name) = self.workload.name(job.tag) {
            self.names.push((job.tag, name.to_owned()));
        }
        let length = job.max_tokens.max(1);
        let disconnects = self.aborts > 0 && self.rng.between(1, 1000) <= self.aborts;
        let abort_after = job.abort_after.or(disconnects.then(|| self.rng.between(0, length - 1)));
        let prompt = job.prompt.tokens();
        let session = job.session.map(SessionId);
        let charge = self.router.pick(&RouteRequest { session, ..RouteRequest::new(&prompt, 0) });
        let charge = charge.map_err(|error| error.to_string())?;
        let request = Request {
            tag: job.tag,
            prompt,
            params: Params {
                max_tokens: job.max_tokens,
                eos: vec![crate::workload::text::EOS],
                priority: job.priority,
                key: job.key,
                sampling: Sampling { seed: job.answer.0, ..Sampling::default() },
                ..Params::default()
            },
        };
        let index = charge.replica();
        let replica = &mut self.replicas[index];
        replica.has_arrivals = true;
        if !replica.is_scheduled {
            replica.clock.advance(self.now);
            replica.is_scheduled = true;
            self.turns.push(Reverse((replica.clock.now(), index)));
        }
        match replica.engine.core_mut().add(request, arrived) {
            Ok(id) => replica.track(id, abort_after, charge),
            // A refusal is delivered as the request's last event.
            Err(_) => self.router.release(charge),
        }
        self.update_waiting(index);
        Ok(())
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
        self.replicas[index].is_scheduled = true;
        self.admit_due()?;
        let replica = &mut self.replicas[index];
        let turn = replica.step(&self.count);
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
        self.router.set_available(index, false);
        self.router.restarted(index);
        if self.replicas.iter().all(|replica| replica.report.lost) {
            self.deliver(index);
            return Err(why);
        }
        Ok(())
    }

    /// Delivers the results of a replica's last step to the router, the counters and the workload.
    fn deliver(&mut self, index: usize) {
        let Self { replicas, router, workload, count, .. } = self;
        let replica = &mut replicas[index];
        for event in replica.results.kv_events.drain(..) {
            router.apply(index, &event);
        }
        if replica.results.ended.is_empty() {
            return;
        }
        let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, mut more) = (workload.total(), Vec::new());
        let now = replica.clock.now();
        for (summary, charge) in replica.results.ended.drain(..) {
            self.ended += 1;
            charge.into_iter().for_each(|charge| router.release(charge));
            let name = || workload.name(summary.tag).map_or_else(|| summary.tag.to_string(), String::from);
            count.ended(&summary, name, total);
            let report = &mut replica.report;
            report.requests += 1;
            report.output_tokens += u64::from(summary.outputs);
            if summary.timings.admitted.is_some() && !matches!(summary.finish, Finish::Refused(_)) {
                report.prompt_tokens += u64::from(summary.prompt);
                report.cached_tokens += u64::from(summary.cached);
            }
            workload.ended(&summary, now, &mut more);
        }
        drop(count);
        for job in more {
            let At::Time(at) = job.at else { continue };
            self.order += 1;
            self.follow_ups.push(Reverse(PendingArrival { at, order: self.order, job }));
        }
    }
}

//! `kvasir sim`: discrete-event simulation of the real engine core over a device cost model.
//!
//! 1. The driver admits requests that are due on the virtual clock or before the current step.
//! 2. `Engine::step` schedules, and the cost device advances the clock by the step's modeled time.
//! 3. Events are counted; aborting clients leave; completions may add follow-up requests.
//! 4. With nothing to run the clock jumps to the next arrival.
//!
//! A run is deterministic in its seed: no wall clock is read. Guarded by `tests/sim.rs`.

pub(crate) mod histogram;
pub(crate) mod report;
pub(crate) mod series;

pub use crate::sim::histogram::{Histogram, Percentiles};
pub use crate::sim::report::{MachineFigure, Outcome, Report, SimulatedMachine};

use crate::sim::report::Count;
use crate::trace::{Lines, Recording};
use crate::workload::rng::WorkloadRng;
use crate::workload::{At, Job, Workload};
use kvasir_engine::{
    Core, Engine, Exit, Nanos, Observer, Params, Request, StepTrace, TraceSink, Tracer, Turn,
};
use kvasir_exec::{Step, StepError};
use kvasir_sample::Sampling;
use kvasir_sim::{Clock, CostDevice};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// Configuration of one simulation.
pub struct Run<'a> {
    /// Scheduler, cache and queue under test, over the device cost model; from [`engine`].
    pub engine: Engine<CostDevice>,
    /// The virtual clock shared with the device.
    pub clock: Clock,
    /// Source of requests.
    pub workload: &'a mut dyn Workload,
    /// Half-open range of steps kept in memory for the viewer.
    pub window: Range<u64>,
    /// Trace file that receives all steps.
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

/// State of a live request.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    last_token: Option<Nanos>,
    outputs: u32,
    abort_after: Option<u32>,
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

/// Consecutive iterations without a step after which the run counts as stuck.
const PATIENCE: u32 = 1_000_000;
/// Clock advance in nanoseconds when only the passage of time can unblock a request.
const NAP: u64 = 1_000_000;
/// Bound on requests admitted between two steps and on the engine's queue.
///
/// Further requests stay in the workload, so that a burst of any size takes little memory and can
/// be interrupted.
const MOST_WAITING: u32 = 1 << 17;

struct Driver<'a> {
    engine: Engine<CostDevice>,
    clock: Clock,
    workload: &'a mut dyn Workload,
    /// The workload's next request, peeked but not yet due.
    ahead: Option<Job>,
    coming: BinaryHeap<Reverse<PendingArrival>>,
    order: u64,
    live: Vec<Live>,
    count: Arc<Mutex<Count>>,
    names: Vec<(u64, String)>,
    aborts: u32,
    rng: WorkloadRng,
    steps: u64,
    ended: u64,
}

/// An engine over a device, on the virtual clock that they share.
pub fn engine(core: Core, device: CostDevice, clock: &Clock, overlap: bool) -> Engine<CostDevice> {
    let clock = clock.clone();
    Engine::new(core, device, move || clock.now()).overlap(overlap)
}

/// Runs a workload to its end, or until the device is lost.
///
/// `progress` receives the number of ended requests after each step; the run stops when it returns
/// `false`.
pub fn run(run: Run<'_>, progress: &mut dyn FnMut(u64) -> bool) -> Finished {
    let count = Arc::new(Mutex::new(Count::default()));
    let recording = Recording::default();
    let core = run.engine.core();
    let (preset, capacity) = (*run.engine.executor().preset(), core.cache().shape().capacity);
    let mut tracers: Vec<Tracer<Box<dyn TraceSink>>> = Vec::new();
    if !run.window.is_empty() {
        tracers.push(Tracer::new(Box::new(recording.clone()), run.window.clone()));
    }
    tracers.extend(run.lines.map(|lines| Tracer::new(Box::new(lines) as Box<dyn TraceSink>, 0..u64::MAX)));
    let eyes = SeriesObserver { count: Arc::clone(&count), tracers, block: core.cache().shape().block_size };
    let mut driver = Driver {
        engine: run.engine.observe(Box::new(eyes)),
        clock: run.clock,
        ahead: run.workload.next(),
        workload: run.workload,
        coming: BinaryHeap::new(),
        order: 0,
        live: Vec::new(),
        count: Arc::clone(&count),
        names: Vec::new(),
        aborts: run.aborts,
        rng: WorkloadRng::new(run.seed ^ 0xAB0127),
        steps: 0,
        ended: 0,
    };
    let exit = driver.drive(progress);
    let (now, spent) = (driver.clock.now(), driver.engine.executor().spent());
    let names = std::mem::take(&mut driver.names);
    let drafts = driver.engine.core().draft_stats().clone();
    drop(driver);
    let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
    count.report.broke_off = exit;
    let mut report = count.report(now, spent, &preset, capacity);
    report.speculation = (drafts.verified > 0).then_some(drafts);
    let plots = count.plots(&report);
    Finished { report, steps: recording.take(), first: run.window.start, plots, names }
}

impl Driver<'_> {
    fn drive(&mut self, progress: &mut dyn FnMut(u64) -> bool) -> Option<String> {
        let mut held = 0;
        loop {
            let came = self.let_in();
            let turn = self.engine.step();
            self.deliver();
            if !progress(self.ended) {
                return Some("interrupted".into());
            }
            match turn {
                Err(Exit::Requested | Exit::Closed) => return None,
                Err(exit) => return Some(exit.to_string()),
                Ok(Turn::Ran) => {
                    self.steps += 1;
                    held = 0;
                }
                Ok(_) if came => {}
                Ok(turn) => match (self.next_time(), turn) {
                    // Without a step the step count cannot advance, so a request due before a later
                    // step is admitted now.
                    (Some(At::Step(step)), _) => self.steps = self.steps.max(step),
                    (Some(At::Time(at)), Turn::Idle) => self.clock.advance(at),
                    (Some(At::Time(at)), _) if at > self.clock.now() => {
                        self.clock.advance(at.min(self.clock.now() + NAP));
                    }
                    (None, Turn::Idle) => return self.engine.core().check_invariants().err(),
                    (_, _) => self.clock.advance(self.clock.now() + NAP),
                },
            }
            held += 1;
            if held > PATIENCE {
                return Some("somebody waits and nothing runs".into());
            }
        }
    }

    /// Due time or step of the next request.
    fn next_time(&self) -> Option<At> {
        let follow = self.coming.peek().map(|Reverse(coming)| coming.at);
        match (self.ahead.as_ref().map(|job| job.at), follow) {
            (Some(At::Time(at)), Some(follow)) => Some(At::Time(at.min(follow))),
            (at, None) => at,
            (_, Some(follow)) => Some(At::Time(follow)),
        }
    }

    /// Admits all due requests up to the queue bound. Returns whether any was admitted.
    fn let_in(&mut self) -> bool {
        let mut came = false;
        let most = self.engine.core().limits().max_waiting.min(MOST_WAITING);
        for _ in 0..most {
            if self.engine.core().counts().0 >= most as usize {
                break;
            }
            let now = self.clock.now();
            let follow = self.coming.peek().map(|Reverse(coming)| coming.at).filter(|at| *at <= now);
            let first = match self.ahead.as_ref().map(|job| job.at) {
                Some(At::Time(at)) if at <= now && follow.is_none_or(|follow| at <= follow) => true,
                Some(At::Step(step)) => step <= self.steps,
                _ => false,
            };
            let job = match (first, follow) {
                (true, _) => {
                    let next = self.workload.next();
                    std::mem::replace(&mut self.ahead, next)
                }
                (false, Some(_)) => self.coming.pop().map(|Reverse(coming)| coming.job),
                (false, None) => break,
            };
            came = true;
            job.into_iter().for_each(|job| self.add(job));
        }
        came
    }

    fn add(&mut self, job: Job) {
        let arrived = match job.at {
            At::Time(at) => at,
            At::Step(_) => self.clock.now(),
        };
        if let Some(name) = self.workload.name(job.tag) {
            self.names.push((job.tag, name.to_owned()));
        }
        let length = job.max_tokens.max(1);
        let leaves = self.aborts > 0 && self.rng.between(1, 1000) <= self.aborts;
        let abort_after = job.abort_after.or(leaves.then(|| self.rng.between(0, length - 1)));
        let request = Request {
            tag: job.tag,
            prompt: job.prompt.tokens(),
            params: Params {
                max_tokens: job.max_tokens,
                eos: vec![crate::workload::text::EOS],
                priority: job.priority,
                key: job.key,
                sampling: Sampling { seed: job.answer.0, ..Sampling::default() },
                ..Params::default()
            },
        };
        // A refusal is delivered as the request's last event.
        if let Ok(id) = self.engine.core_mut().add(request, arrived) {
            let at = id.index() as usize;
            if self.live.len() <= at {
                self.live.resize(at + 1, Live::default());
            }
            self.live[at] = Live { abort_after, ..Live::default() };
            if abort_after == Some(0) {
                self.engine.abort(id);
            }
        }
    }

    /// Delivers the engine's events to counters and workload, and aborts requests whose client
    /// leaves.
    fn deliver(&mut self) {
        let now = self.clock.now();
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let mut leaving = Vec::new();
        let mut more = Vec::new();
        let outbox = self.engine.core_mut().outbox();
        for event in &outbox.events {
            let Some(live) = self.live.get_mut(event.request.index() as usize) else { continue };
            if event.tokens.len > 0 {
                if let Some(last) = live.last_token {
                    count.gap(now.saturating_sub(last));
                }
                live.last_token = Some(now);
                live.outputs += event.tokens.len;
                if event.finish.is_none() && live.abort_after.is_some_and(|after| live.outputs >= after) {
                    leaving.push(event.request);
                }
            }
        }
        let total = self.workload.total();
        for summary in &outbox.ended {
            self.ended += 1;
            let name =
                || self.workload.name(summary.tag).map_or_else(|| summary.tag.to_string(), String::from);
            count.ended(summary, name, total);
            self.workload.ended(summary, now, &mut more);
        }
        outbox.clear();
        drop(count);
        for job in more {
            let At::Time(at) = job.at else { continue };
            self.order += 1;
            self.coming.push(Reverse(PendingArrival { at, order: self.order, job }));
        }
        if !leaving.is_empty() {
            leaving.into_iter().for_each(|id| {
                self.engine.abort(id);
            });
            self.deliver();
        }
    }
}

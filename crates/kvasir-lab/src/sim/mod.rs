//! `kvasir sim`: the real core over the cost device, driven by a workload on a virtual clock.

mod histogram;
mod report;
mod series;

pub use histogram::{Histogram, Percentiles};
pub use report::{Outcome, Report};
pub(crate) use series::{Sample, Series};

use crate::{
    trace::{Lines, Recording},
    workload::{At, Dice, Job, Workload},
};
use kvasir_engine::{
    Core, Engine, Exit, Nanos, Observer, Params, Request, StepTrace, TraceSink, Tracer, Turn,
};
use kvasir_exec::{Step, StepError};
use kvasir_sample::Sampling;
use kvasir_sim::{Clock, CostDevice};
use report::Count;
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// How a run is made.
pub struct Run<'a> {
    /// What decides.
    pub core: Core,
    /// What takes the time.
    pub device: CostDevice,
    /// The device's clock.
    pub clock: Clock,
    /// `--overlap`.
    pub overlap: bool,
    /// Who asks what.
    pub workload: &'a mut dyn Workload,
    /// Steps that are kept, counted from 0.
    pub window: Range<u64>,
    /// Where all steps are written to.
    pub lines: Option<Lines>,
    /// Thousandths of the requests whose client leaves somewhere in the answer.
    pub aborts: u32,
    /// Seed of those.
    pub seed: u64,
}

/// What a run leaves.
pub struct Finished {
    /// What it came to.
    pub report: Report,
    /// The steps that were recorded.
    pub steps: Vec<StepTrace>,
    /// Steps before and in the whole run.
    pub first: u64,
    /// Its plots, for the page.
    pub plots: serde_json::Value,
    /// Names of requests by their tags, where they have some.
    pub names: Vec<(u64, String)>,
}

/// What is known of a request that is live.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    last_token: Option<Nanos>,
    outputs: u32,
    abort_after: Option<u32>,
}

/// Sees steps for the count and for the recording.
struct Eyes {
    count: Arc<Mutex<Count>>,
    tracers: Vec<Tracer<Box<dyn TraceSink>>>,
    block: u32,
}

impl Observer for Eyes {
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

impl Drop for Eyes {
    fn drop(&mut self) {
        // The newest records are still open.
        self.tracers.drain(..).for_each(|tracer| drop(tracer.finish()));
    }
}

/// A request to come, the earliest first, and of those at one time the one that was known first.
#[derive(Debug)]
struct Coming {
    at: u64,
    order: u64,
    job: Job,
}

impl PartialEq for Coming {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Coming {}
impl PartialOrd for Coming {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Coming {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Turns in a row without a step before a run counts as stuck.
const PATIENCE: u32 = 1_000_000;
/// Time that passes when somebody waits whom time alone may let in.
const NAP: u64 = 1_000_000;
/// Requests that come in between two steps at most, and wait in the engine at once; further ones wait in front of it, so that however many
/// are sent at once, they take little memory and the run can be interrupted.
const MOST_WAITING: u32 = 1 << 17;

struct Driver<'a> {
    engine: Engine<CostDevice>,
    clock: Clock,
    workload: &'a mut dyn Workload,
    /// The workload's next request, looked at and not come yet.
    ahead: Option<Job>,
    coming: BinaryHeap<Reverse<Coming>>,
    order: u64,
    live: Vec<Live>,
    count: Arc<Mutex<Count>>,
    names: Vec<(u64, String)>,
    aborts: u32,
    dice: Dice,
    steps: u64,
    ended: u64,
}

/// Runs a workload to its end, or to where the device is lost. `progress` is told after each step how many requests have ended,
/// and says whether to go on.
pub fn run(run: Run<'_>, progress: &mut dyn FnMut(u64) -> bool) -> Finished {
    let count = Arc::new(Mutex::new(Count::default()));
    let recording = Recording::default();
    let (preset, capacity) = (*run.device.preset(), run.core.cache().capacity());
    let mut tracers: Vec<Tracer<Box<dyn TraceSink>>> = Vec::new();
    if !run.window.is_empty() {
        tracers.push(Tracer::new(Box::new(recording.clone()), run.window.clone()));
    }
    tracers.extend(run.lines.map(|lines| Tracer::new(Box::new(lines) as Box<dyn TraceSink>, 0..u64::MAX)));
    let eyes = Eyes { count: Arc::clone(&count), tracers, block: run.core.cache().block_size() };
    let clock = run.clock.clone();
    let engine =
        Engine::new(run.core, run.device, move || clock.now()).overlap(run.overlap).observe(Box::new(eyes));
    let mut driver = Driver {
        engine,
        clock: run.clock,
        ahead: run.workload.next(),
        workload: run.workload,
        coming: BinaryHeap::new(),
        order: 0,
        live: Vec::new(),
        count: Arc::clone(&count),
        names: Vec::new(),
        aborts: run.aborts,
        dice: Dice::new(run.seed ^ 0xAB0127),
        steps: 0,
        ended: 0,
    };
    let exit = driver.drive(progress);
    let (now, spent) = (driver.clock.now(), driver.engine.executor().spent());
    let names = std::mem::take(&mut driver.names);
    drop(driver);
    let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
    count.report.broke_off = exit;
    let report = count.report(now, spent, &preset, capacity);
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
                Err(Exit::Asked | Exit::Closed) => return None,
                Err(exit) => return Some(exit.to_string()),
                Ok(Turn::Ran) => {
                    self.steps += 1;
                    held = 0;
                }
                Ok(_) if came => {}
                Ok(turn) => match (self.next_time(), turn) {
                    // Without a step no number of steps goes by: whoever comes before a later step comes now.
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

    /// When the next request comes.
    fn next_time(&self) -> Option<At> {
        let follow = self.coming.peek().map(|Reverse(coming)| coming.at);
        match (self.ahead.as_ref().map(|job| job.at), follow) {
            (Some(At::Time(at)), Some(follow)) => Some(At::Time(at.min(follow))),
            (at, None) => at,
            (_, Some(follow)) => Some(At::Time(follow)),
        }
    }

    /// Lets in whoever has come by now, as far as there is room.
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
        let leaves = self.aborts > 0 && self.dice.between(1, 1000) <= self.aborts;
        let abort_after = job.abort_after.or(leaves.then(|| self.dice.between(0, length - 1)));
        let request = Request {
            tag: job.tag,
            prompt: job.prompt.tokens(),
            params: Params {
                max_tokens: job.max_tokens,
                eos: vec![crate::workload::EOS],
                priority: job.priority,
                key: job.key,
                sampling: Sampling { seed: job.answer.0, ..Sampling::default() },
                ..Params::default()
            },
        };
        // A refusal comes back as the request's last event.
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

    /// Takes what the engine has to say, and lets clients leave.
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
            self.coming.push(Reverse(Coming { at, order: self.order, job }));
        }
        if !leaving.is_empty() {
            leaving.into_iter().for_each(|id| {
                self.engine.abort(id);
            });
            self.deliver();
        }
    }
}

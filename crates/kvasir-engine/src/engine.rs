//! The step loop: runs a `Core` over an `Executor`, with overlapped scheduling (asynchronous
//! execution), drafting and observers.
//!
//! One turn with overlap:
//!
//! 1. Schedule step n + 1 while step n runs on the device. Input tokens still on the device are fed
//!    as `IN_FLIGHT`.
//! 2. Submit it, or park it in `ready` if the executor's pipeline (`Abilities::depth`) is full.
//! 3. Wait for step n, submit the parked step, then postprocess step n, measure its cost and
//!    propose drafts.
//!
//! Invariants: a plan whose cache generation is stale is never submitted. After `StepError::Lost`
//! the engine is dead and every request has been failed. Outputs do not depend on overlap. An
//! `Observer` (recorder, metrics) sees every scheduled and completed step and changes nothing.

pub(crate) mod kv_transfer;
pub(crate) mod lockstep;

use crate::core::Core;
use crate::engine::kv_transfer::Exporter;
use crate::engine::lockstep::LockstepGroup;
use crate::request::finish::{Fault, Refusal};
use crate::request::ids::RequestId;
use crate::request::params::Request;
use crate::request::proposal::Proposal;
use crate::request::sequence::{Sequence, Status};
use crate::request::timings::Nanos;
use crate::speculation::drafter::Drafter;
use crate::speculation::width::DraftWidth;
use crate::step::cost_meter::CostMeter;
use kvasir_exec::{Abilities, Executor, Fitting, Original, Refused, Step, StepError};
use kvasir_kv::CacheError;
use std::{collections::VecDeque, fmt};

/// Why an engine has stopped permanently.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// `Message::Exit`, or `Message::Drain` once all requests have ended.
    Requested,
    /// All senders of its inbox are gone.
    Closed,
    /// The executor is lost; every request has been failed.
    DeviceLost(String),
    /// An invariant is violated: a bug.
    Broken(String),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => write!(f, "exit requested"),
            Self::Closed => write!(f, "all senders of the inbox are gone"),
            Self::DeviceLost(why) => write!(f, "device lost: {why}"),
            Self::Broken(why) => write!(f, "invariant violated: {why}"),
        }
    }
}

impl std::error::Error for Exit {}

/// What one turn of the step loop did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A step was submitted or completed.
    Ran,
    /// Requests are waiting, but none can run now.
    Deferred,
    /// No requests.
    Idle,
}

/// Sees every step, to record or count. It must not block: it runs on the engine's thread.
pub trait Observer: Send {
    /// A step was scheduled: its decisions are in `Core::record`, its batch and plan in `step`.
    fn scheduled(&mut self, core: &Core, step: &Step);
    /// A step was postprocessed: its events are in `Core::events`, which may still hold undelivered
    /// earlier ones.
    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, now: Nanos);
    /// The engine ran a dummy step to join a step of other replicas; see
    /// [`Lockstep`](crate::Lockstep).
    fn joined(&mut self, _core: &Core, _step: &Step, _now: Nanos) {}
    /// No request is left; some may have ended between two steps.
    fn idle(&mut self, _core: &Core) {}
}

/// A `Core` driven over an executor.
///
/// With overlap, step n + 1 is scheduled and submitted while step n runs; tokens the host has not
/// seen stay on the device. Without it each step is awaited at once. The outputs are the same.
pub struct Engine<E: Executor> {
    core: Core,
    executor: E,
    clock: Box<dyn FnMut() -> Nanos + Send>,
    overlap: bool,
    abilities: Abilities,
    /// Steps in flight; with the original of what was rewritten for the executor.
    pending: VecDeque<(E::Pending, Original)>,
    /// A scheduled step that is submitted once the oldest step in flight is done, because the
    /// executor's pipeline is full.
    ready: Option<Box<Step>>,
    fitting: Fitting,
    drafter: Option<Box<dyn Drafter>>,
    proposal: Proposal,
    /// Scratch of `take_proposals`.
    numbers: Vec<i32>,
    observers: Vec<Box<dyn Observer>>,
    meter: CostMeter,
    /// Exports K/V blocks of requests that another engine will decode.
    exporter: Option<Exporter>,
    /// Set if data-parallel replicas run each step together with this engine.
    lockstep: Option<LockstepGroup>,
    ended: Option<Exit>,
}

impl<E: Executor> Engine<E> {
    /// An idle engine. `clock` returns the time in nanoseconds. The core's limits must be within
    /// the executor's abilities (`Limits::within`), and its cache must plan for the executor's KV
    /// pool.
    pub fn new(core: Core, executor: E, clock: impl FnMut() -> Nanos + Send + 'static) -> Self {
        let abilities = executor.abilities();
        Self {
            fitting: Fitting::new(core.padding(&abilities)),
            abilities,
            core,
            executor,
            clock: Box::new(clock),
            overlap: true,
            pending: VecDeque::new(),
            ready: None,
            drafter: None,
            proposal: Proposal::default(),
            numbers: Vec::new(),
            observers: Vec::new(),
            meter: CostMeter::default(),
            exporter: None,
            lockstep: None,
            ended: None,
        }
    }

    /// `--overlap`: schedule step n + 1 while step n runs. On by default.
    pub fn overlap(mut self, on: bool) -> Self {
        self.overlap = on;
        self
    }

    /// Whether it schedules step n + 1 while step n runs.
    pub fn overlaps(&self) -> bool {
        self.overlap
    }

    /// Enables speculative decoding with `drafter`. Fails if it proposes trees and the cache does
    /// not support them. Call it before the first request is added.
    pub fn draft(mut self, drafter: Box<dyn Drafter>) -> Result<Self, CacheError> {
        if drafter.proposes_trees() {
            self.core.cache_mut().tree()?;
        }
        self.core.set_spec_steps(drafter.width());
        self.drafter = Some(drafter);
        Ok(self)
    }

    /// Takes the proposals of the executor's draft model, trees if `trees` is set, of up to `depth`
    /// levels and `tokens` tokens. Fails if it proposes trees and the cache does not support them.
    /// Call it before the first request is added.
    pub fn draft_in_executor(mut self, depth: u32, tokens: u32, trees: bool) -> Result<Self, CacheError> {
        if trees {
            self.core.cache_mut().tree()?;
        }
        self.core.set_spec_steps(tokens);
        self.core.set_model_depth(depth);
        Ok(self)
    }

    /// How the number of drafts of a step is chosen; all that are proposed, unless this is called.
    pub fn draft_width(mut self, width: DraftWidth) -> Self {
        self.core.set_draft_width(width);
        self
    }

    /// Adds an observer.
    pub fn observe(mut self, observer: Box<dyn Observer>) -> Self {
        self.add_observer(observer);
        self
    }

    /// Adds an observer to an engine that may have run.
    pub fn add_observer(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The core, to add requests and read events. Scheduling is left to `Engine::step`.
    pub fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The executor.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The executor, between steps. Steps may be in flight on it.
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }

    /// Replaces the clock. Call it while no request is open.
    pub fn set_clock(&mut self, clock: impl FnMut() -> Nanos + Send + 'static) {
        self.clock = Box::new(clock);
    }

    /// Reads the clock.
    pub fn now(&mut self) -> Nanos {
        (self.clock)()
    }

    /// Queues a request.
    pub fn add_request(&mut self, request: Request) -> Result<RequestId, Refusal> {
        let now = self.now();
        self.core.add(request, now)
    }

    /// Aborts a request. False if it has ended already.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let now = self.now();
        self.core.abort(id, now)
    }

    /// One turn: schedules a step if one can be built, and completes the oldest steps in flight
    /// beyond the overlap. In lockstep, an engine without work joins the steps of other replicas.
    /// Once the engine has ended, every later call returns the same again.
    pub fn step(&mut self) -> Result<Turn, Exit> {
        if let Some(exit) = &self.ended {
            return Err(exit.clone());
        }
        let scheduled = self.schedule_next()?;
        let allowed = if self.overlap && scheduled { 1 } else { 0 };
        let mut ran = scheduled;
        while self.pending.len() + usize::from(self.ready.is_some()) > allowed {
            self.complete_oldest()?;
            ran = true;
        }
        if ran || self.join_step()? {
            return Ok(Turn::Ran);
        }
        if !self.core.is_idle() {
            return Ok(Turn::Deferred);
        }
        self.core.recount_retained();
        for observer in &mut self.observers {
            observer.idle(&self.core);
        }
        Ok(Turn::Idle)
    }

    /// Returns the memory of free slots of the KV pools to the system; the next step that writes them
    /// commits it again. Does nothing while a step is in flight. Linear in the blocks of the pool.
    pub fn release_free_memory(&mut self) {
        if !self.pending.is_empty() || self.ready.is_some() {
            return;
        }
        let cache = self.core.cache();
        let mut free = Vec::new();
        for (group, _) in cache.shape().groups.iter() {
            free.clear();
            cache.free_slots(group, &mut free);
            if !free.is_empty() {
                self.executor.release(group, &free);
            }
        }
    }

    /// Schedules the next step and submits it, or parks it until the executor can take it.
    fn schedule_next(&mut self) -> Result<bool, Exit> {
        let now = self.now();
        self.core.set_costs(self.meter.costs());
        if let Some(lockstep) = &mut self.lockstep {
            lockstep.coalesce(&mut self.core, now);
        }
        let Some(step) = self.core.schedule(now) else { return Ok(false) };
        for (row, spec) in self.core.take_binds() {
            self.executor.bind(row, spec);
        }
        for observer in &mut self.observers {
            observer.scheduled(&self.core, &step);
        }
        if self.pending.len() < self.abilities.depth.max(1) as usize {
            self.submit(step)?
        } else {
            self.ready = Some(step)
        }
        Ok(true)
    }

    /// Submits a step, rewritten to what the executor takes: padded to its static shapes, with a plan
    /// of a kind that it accepts. A refused step is canceled and its sequences fail; a stale plan
    /// stops the engine.
    fn submit(&mut self, mut step: Box<Step>) -> Result<(), Exit> {
        if let Err(stale) = self.core.cache().check_fresh(&step.plan) {
            self.refuse(step, StepError::Failed(stale.to_string()))?;
            return Err(self.end(Exit::Broken(stale.to_string()), Fault::Internal));
        }
        let submitted = match self.fitting.fit(&mut step, &self.abilities) {
            Ok(original) => match self.executor.submit(step) {
                Ok(pending) => Ok((pending, original)),
                Err(mut refused) => {
                    original.restore(&mut refused.step);
                    Err(refused)
                }
            },
            Err(error) => Err(Refused { step, error }),
        };
        match submitted {
            Ok(pending) => {
                self.pending.push_back(pending);
                Ok(())
            }
            Err(Refused { step, error }) => self.refuse(step, error),
        }
    }

    /// Cancels the newest step, which was not run, and fails its sequences.
    fn refuse(&mut self, step: Box<Step>, error: StepError) -> Result<(), Exit> {
        let now = self.now();
        self.core.reject(&step, &error, now);
        self.close(step, Err(error), now)
    }

    /// Reports a step that the core has taken back, and keeps its memory. A lost device ends the engine.
    fn close(&mut self, step: Box<Step>, result: Result<(), StepError>, now: Nanos) -> Result<(), Exit> {
        for observer in &mut self.observers {
            observer.completed(&self.core, &step, &result, now);
        }
        self.core.recycle(step);
        match result {
            Err(StepError::Lost(why)) => Err(self.end(Exit::DeviceLost(why), Fault::DeviceLost)),
            _ => Ok(()),
        }
    }

    /// Waits for the oldest step, submits the parked one so that the device does not idle, then
    /// postprocesses.
    fn complete_oldest(&mut self) -> Result<(), Exit> {
        let Some((pending, original)) = self.pending.pop_front() else {
            return match self.ready.take() {
                Some(step) => self.submit(step),
                None => Ok(()),
            };
        };
        let (mut step, result) = self.executor.wait(pending);
        original.restore(&mut step);
        let submitted = match self.ready.take() {
            Some(next) => self.submit(next),
            None => Ok(()),
        };
        let now = self.now();
        self.core.postprocess(&step, &result, now);
        if result.is_ok() {
            self.meter.observe(&step.batch, step.output.device_ns);
            self.core.observe_times(&step);
            self.export_computed(&step);
            self.propose(&step);
            self.take_proposals(&step);
        }
        self.close(step, result, now)?;
        submitted
    }

    /// Runs the drafter for every sequence that has just sampled and has no token in flight.
    fn propose(&mut self, step: &Step) {
        let Some(drafter) = &mut self.drafter else { return };
        drafter.begin_step();
        let mut ended = false;
        for row in step.batch.rows.iter().filter(|row| row.samples()) {
            let id = RequestId(row.request);
            match self.core.sequence(id) {
                Some(sequence) if can_verify(sequence) => {
                    self.proposal.clear();
                    if sequence.params().draft_limit() != Some(0) {
                        drafter.propose(sequence, &mut self.proposal);
                        self.core.set_drafts(id, &self.proposal);
                    }
                }
                Some(_) => {}
                None => ended = true,
            }
        }
        if ended {
            let core = &self.core;
            drafter.retain(&|id| core.sequence(id).is_some());
        }
    }

    /// Hands the proposals of the executor's draft model to their sequences. It proposes nothing for a
    /// sequence of whose context it lacks much; such a one is not followed any longer.
    fn take_proposals(&mut self, step: &Step) {
        let drafted_rows = step.batch.rows.iter().zip(0..).filter(|(row, _)| row.draft_depth > 0);
        for (row, i) in drafted_rows.filter(|_| step.output.draft_error.is_none()) {
            if step.output.proposals.binary_search_by_key(&i, |proposed| proposed.row).is_err() {
                self.core.unfollow(RequestId(row.request));
            }
        }
        for proposed in &step.output.proposals {
            let Some(row) = step.batch.rows.get(proposed.row as usize) else { continue };
            let id = RequestId(row.request);
            if self.core.sequence(id).is_some_and(can_verify) {
                let candidates = step.output.candidates.get(proposed.candidates.range()).unwrap_or(&[]);
                self.proposal.take_kept(candidates, &mut self.numbers);
                self.core.set_drafts(id, &self.proposal);
            }
        }
    }

    /// Ends the engine: fails every request and submits nothing again.
    fn end(&mut self, exit: Exit, fault: Fault) -> Exit {
        let now = self.now();
        self.core.fail_all(fault, now);
        self.ended = Some(exit.clone());
        exit
    }
}

/// Whether drafts can be proposed for a sequence: its newest token is committed.
fn can_verify(sequence: &Sequence) -> bool {
    sequence.status() == Status::Running && sequence.in_flight() == 0
}

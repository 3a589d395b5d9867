//! [`Lockstep`]: replicas that share experts run their steps together.
//!
//! A replica begins a step when it has scheduled one; the others join it. One without work joins
//! with a *dummy step*, which has no sequences and takes part in the exchanges of the experts. While
//! no replica has work, none runs steps.
//!
//! With a [`Coalescer`], a replica admits prompts when the others do. The states of the other
//! replicas are those of their last step.

use crate::core::Core;
use crate::engine::{Engine, Exit};
use crate::request::finish::Fault;
use crate::request::timings::Nanos;
use crate::scheduler::coalescer::{Coalescer, Coalescing, LocalState, ReplicaState};
use kvasir_exec::{Executor, Refused, Step};
use kvasir_kv::Lowering;

/// The other replicas of a group that runs its steps together. Its executor joins them.
pub trait Lockstep: Send {
    /// Whether another replica has begun a step that this one has not joined.
    fn is_behind(&self) -> bool;
    /// Publishes the state of this replica with its next step. Appends the states that the other
    /// replicas published with their last steps.
    fn exchange_states(&mut self, own: ReplicaState, others: &mut Vec<ReplicaState>);
}

/// The lockstep of an engine.
pub(crate) struct LockstepGroup {
    peers: Box<dyn Lockstep>,
    coalescer: Option<Coalescer>,
    /// This replica's state, then those of the others. Scratch of `coalesce`.
    states: Vec<ReplicaState>,
}

impl LockstepGroup {
    /// Decides whether the next step may admit prompts.
    pub(crate) fn coalesce(&mut self, core: &mut Core, now: Nanos) {
        let Some(coalescer) = &mut self.coalescer else { return };
        let (own, local) = states_of(core, now);
        self.states.clear();
        self.states.push(own);
        self.peers.exchange_states(own, &mut self.states);
        // Without a prompt that waits, there is nothing to decide.
        let allows = !own.prefillable || coalescer.allows(&self.states, local);
        core.defer_admissions(!allows);
    }
}

/// The inputs of a coalescer. Linear in the requests.
fn states_of(core: &Core, now: Nanos) -> (ReplicaState, LocalState) {
    let waiting: u64 = core.waiting().map(|sequence| u64::from(sequence.to_feed())).sum();
    let partial = || core.running().filter(|sequence| sequence.is_prefilling());
    let running: u64 = partial().map(|sequence| u64::from(sequence.to_feed())).sum();
    let oldest = core.waiting().map(|sequence| sequence.timings().arrived).min();
    let usage = core.cache().usage();
    let own = ReplicaState {
        prefillable: waiting + running > 0,
        pending_tokens: waiting + running,
        running_decode: core.running().filter(|sequence| !sequence.is_prefilling()).count() as u64,
    };
    let local = LocalState {
        kv_usage: f64::from(usage.held) / f64::from(core.cache().shape().capacity.max(1)),
        has_partial: running > 0,
        oldest_age_ms: oldest.map_or(0.0, |arrived| now.saturating_sub(arrived) as f64 / 1e6),
    };
    (own, local)
}

impl<E: Executor> Engine<E> {
    /// Runs its steps together with other replicas, and coalesces prefills with theirs if
    /// `coalescing` is set. Its executor must join their steps.
    pub fn in_lockstep(mut self, peers: Box<dyn Lockstep>, coalescing: Option<Coalescing>) -> Self {
        let coalescer = coalescing.map(Coalescer::new);
        self.lockstep = Some(LockstepGroup { peers, coalescer, states: Vec::new() });
        self
    }

    /// Joins the step of another replica with a dummy step. Returns whether there was one. No step
    /// may be in flight.
    pub(crate) fn join_step(&mut self) -> Result<bool, Exit> {
        if !self.lockstep.as_ref().is_some_and(|lockstep| lockstep.peers.is_behind()) {
            return Ok(false);
        }
        let mut step = Box::new(Step::dummy(0, 0));
        step.batch.step = self.core.take_step_id();
        let lowered = step.lower(&self.abilities, &mut Lowering::default());
        let (step, result) = match lowered.map(|_| self.executor.submit(step)) {
            Ok(Ok(pending)) => self.executor.wait(pending),
            Ok(Err(Refused { step, error })) => (step, Err(error)),
            Err(error) => (Box::default(), Err(error)),
        };
        let now = self.now();
        for observer in &mut self.observers {
            observer.joined(&self.core, &step, now);
        }
        // A replica that cannot run a step without sequences blocks the others.
        match result {
            Ok(()) => Ok(true),
            Err(error) => Err(self.end(Exit::DeviceLost(error.to_string()), Fault::DeviceLost)),
        }
    }
}

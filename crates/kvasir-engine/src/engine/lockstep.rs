//! [`Lockstep`]: expert-parallel replicas run each step together.
//!
//! A replica begins a step when it has scheduled one; the others join the step. A replica without
//! work joins with a *dummy step*, which has no sequences but takes part in the expert exchanges of
//! the step. While no replica has work, none runs steps.
//!
//! With a [`Coalescer`], a replica admits prompts when the others do. It sees the state that each
//! other replica published with its last step.
//!
//! Guarded by `tests/lockstep.rs`.

use crate::core::Core;
use crate::engine::{Engine, Exit};
use crate::request::finish::Fault;
use crate::request::timings::Nanos;
use crate::scheduler::coalescer::{Coalescer, Coalescing, LocalState, ReplicaState};
use kvasir_exec::{Executor, Step};

/// The other replicas of a lockstep group. The executor of the engine joins their steps.
pub trait Lockstep: Send {
    /// Whether another replica has begun a step that this one has not joined.
    fn is_behind(&self) -> bool;
    /// Sets the state that this replica publishes with its next step. Appends the states that the
    /// other replicas published with their last steps to `others`.
    fn exchange_states(&mut self, own: ReplicaState, others: &mut Vec<ReplicaState>);
}

/// An engine's lockstep group, and the coalescing of its prefills.
pub(crate) struct LockstepGroup {
    peers: Box<dyn Lockstep>,
    coalescer: Option<Coalescer>,
    /// Scratch of `coalesce`: the state of this replica, followed by those of the others.
    states: Vec<ReplicaState>,
}

impl LockstepGroup {
    /// Defers the admissions of the next step unless the coalescer allows them.
    pub(crate) fn coalesce(&mut self, core: &mut Core, now: Nanos) {
        let Some(coalescer) = &mut self.coalescer else { return };
        let (own, local) = coalescing_inputs(core, now);
        self.states.clear();
        self.states.push(own);
        self.peers.exchange_states(own, &mut self.states);
        // Without pending prompt tokens there is no admission to defer.
        let allows = !own.prefillable || coalescer.allows(&self.states, local);
        core.defer_admissions(!allows);
    }
}

/// Computes the inputs of the coalescer. Cost: linear in the number of requests.
fn coalescing_inputs(core: &Core, now: Nanos) -> (ReplicaState, LocalState) {
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
    /// Runs each step together with the replicas of `peers`, and coalesces prefills with theirs if
    /// `coalescing` is set. The executor must join the steps of the group.
    pub fn in_lockstep(mut self, peers: Box<dyn Lockstep>, coalescing: Option<Coalescing>) -> Self {
        let coalescer = coalescing.map(Coalescer::new);
        self.lockstep = Some(LockstepGroup { peers, coalescer, states: Vec::new() });
        self
    }

    /// If another replica has begun a step, joins it with a dummy step and returns true. No step of
    /// this engine may be in flight.
    pub(crate) fn join_step(&mut self) -> Result<bool, Exit> {
        if !self.lockstep.as_ref().is_some_and(|lockstep| lockstep.peers.is_behind()) {
            return Ok(false);
        }
        let mut step = Box::new(Step::dummy(0, 0));
        step.batch.step = self.core.allocate_step_id();
        let (step, result) = step.run_alone(&mut self.executor, &self.abilities);
        let now = self.now();
        for observer in &mut self.observers {
            observer.joined(&self.core, &step, now);
        }
        // The other replicas wait for this one in each exchange, so a failed dummy step ends the
        // engine.
        match result {
            Ok(()) => Ok(true),
            Err(error) => Err(self.end(Exit::DeviceLost(error.to_string()), Fault::DeviceLost)),
        }
    }
}

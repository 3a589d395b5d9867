//! Engines in lockstep: dummy steps of an engine without work, and coalescing of prefills.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError, StepKind};
use kvasir_kv::{CacheConfig, CacheKind, build};
use kvasir_sim::Toy;
use std::sync::{Arc, Mutex};

/// Simulated state of the other replicas.
#[derive(Default)]
struct SimulatedPeers {
    /// Number of steps that they have begun and the engine under test has not joined.
    begun: u32,
    /// The states that they publish.
    states: Vec<ReplicaState>,
    /// The states that the engine under test has published.
    published: Vec<ReplicaState>,
}

struct FakeLockstep(Arc<Mutex<SimulatedPeers>>);

impl Lockstep for FakeLockstep {
    fn is_behind(&self) -> bool {
        self.0.lock().unwrap().begun > 0
    }

    fn exchange_states(&mut self, own: ReplicaState, others: &mut Vec<ReplicaState>) {
        let mut peers = self.0.lock().unwrap();
        peers.published.push(own);
        others.extend_from_slice(&peers.states);
    }
}

/// A toy executor, each step of which joins one step of the peers.
struct JoiningExecutor {
    toy: Toy,
    others: Arc<Mutex<SimulatedPeers>>,
    /// Whether dummy steps fail.
    fails: bool,
}

impl Executor for JoiningExecutor {
    type Pending = (Box<Step>, Result<(), StepError>);

    fn abilities(&self) -> Abilities {
        self.toy.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.toy.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Self::Pending, Refused> {
        let mut others = self.others.lock().unwrap();
        others.begun = others.begun.saturating_sub(1);
        if step.batch.kind == StepKind::Dummy {
            let result = if self.fails { Err(StepError::Failed("no memory".into())) } else { Ok(()) };
            return Ok((step, result));
        }
        let pending = self.toy.submit(step)?;
        Ok(self.toy.wait(pending))
    }

    fn wait(&mut self, pending: Self::Pending) -> (Box<Step>, Result<(), StepError>) {
        pending
    }
}

fn engine(
    others: &Arc<Mutex<SimulatedPeers>>,
    coalescing: Option<Coalescing>,
    fails: bool,
) -> Engine<JoiningExecutor> {
    let cache = build(CacheKind::Paged, &CacheConfig { block_size: 4, ..CacheConfig::new(256) }).unwrap();
    let policy = Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0));
    let core = Core::new(Limits::default(), Order::Fcfs, policy, cache);
    let executor = JoiningExecutor { toy: Toy::new(), others: Arc::clone(others), fails };
    let engine = Engine::new(core, executor, || 0).overlap(false);
    engine.in_lockstep(Box::new(FakeLockstep(Arc::clone(others))), coalescing)
}

fn request(outputs: u32) -> Request {
    let params = Params { max_tokens: outputs, ..Params::default() };
    Request { tag: 1, prompt: vec![3, 4, 5, 6], params }
}

/// Records the ids of dummy steps.
struct DummyStepIds(Arc<Mutex<Vec<u64>>>);

impl Observer for DummyStepIds {
    fn scheduled(&mut self, _: &Core, _: &Step) {}
    fn completed(&mut self, _: &Core, _: &Step, _: &Result<(), StepError>, _: Nanos) {}
    fn joined(&mut self, _: &Core, step: &Step, _: Nanos) {
        self.0.lock().unwrap().push(step.batch.step.0);
    }
}

#[test]
fn an_idle_engine_joins_each_step_of_the_others_once() {
    let (others, joined) = (Arc::<Mutex<SimulatedPeers>>::default(), Arc::<Mutex<Vec<u64>>>::default());
    let mut engine = engine(&others, None, false).observe(Box::new(DummyStepIds(Arc::clone(&joined))));
    assert_eq!(engine.step(), Ok(Turn::Idle));
    others.lock().unwrap().begun = 3;
    let turns: Vec<_> = (0..4).map(|_| engine.step().unwrap()).collect();
    assert_eq!(turns, [Turn::Ran, Turn::Ran, Turn::Ran, Turn::Idle]);
    // A step with sequences also joins a step of the others.
    engine.add_request(request(5)).unwrap();
    others.lock().unwrap().begun = 7;
    while engine.step() != Ok(Turn::Idle) {
        engine.core().check_invariants().unwrap();
    }
    assert_eq!(*joined.lock().unwrap(), [1, 2, 3, 9, 10], "steps 4 to 8 have sequences");
    assert!(engine.core().is_idle());
}

#[test]
fn an_engine_that_cannot_join_ends() {
    let others = Arc::<Mutex<SimulatedPeers>>::default();
    let mut engine = engine(&others, None, true);
    others.lock().unwrap().begun = 1;
    assert!(matches!(engine.step(), Err(Exit::DeviceLost(why)) if why.contains("no memory")));
    assert!(matches!(engine.step(), Err(Exit::DeviceLost(_))));
}

#[test]
fn prompts_wait_for_prompts_of_the_other_replicas() {
    let others = Arc::<Mutex<SimulatedPeers>>::default();
    let rules = Coalescing { max_num_batched_tokens: 5, stall_ticks: 90, ..Coalescing::default() };
    let mut engine = engine(&others, Some(rules), false);
    // The other replica only decodes.
    others.lock().unwrap().states = vec![ReplicaState { running_decode: 1, ..ReplicaState::default() }];
    engine.add_request(request(200)).unwrap();
    engine.step().unwrap();
    let late = engine.add_request(request(2)).unwrap();
    for _ in 0..10 {
        engine.step().unwrap();
        assert_eq!(engine.core().reason(late), Some(DeferReason::Coalesce));
    }
    let own = ReplicaState { prefillable: true, pending_tokens: 4, running_decode: 1 };
    assert_eq!(others.lock().unwrap().published.last(), Some(&own));
    // The other replica gets a prompt.
    others.lock().unwrap().states =
        vec![ReplicaState { prefillable: true, pending_tokens: 4, running_decode: 1 }];
    engine.step().unwrap();
    assert_eq!(engine.core().reason(late), None);
}

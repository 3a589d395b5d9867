//! Tests of joined steps and exchanges between threads, each with its own mapping of the memory.

use crate::experts::layout::ExchangeLayout;
use crate::experts::member::{ExpertGroupMember, create_experts_memory};
use crate::experts::watcher::LockstepInbox;
use kvasir_engine::{Inbox, Message, ReplicaState};
use kvasir_exec::{DispatchRows, ExpertExchange, NO_EXPERT, StepError, StoreOutput};
use kvasir_testkit::Random;
use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

fn group(replicas: usize, chunk_rows: usize) -> Vec<Arc<ExpertGroupMember>> {
    let file = create_experts_memory().unwrap();
    let layout = ExchangeLayout { replicas, chunk_rows, width: 5, top_k: 3 };
    (0..replicas)
        .map(|replica| Arc::new(ExpertGroupMember::map_file(&file, layout, replica).unwrap()))
        .collect()
}

/// The output of a fake expert for a row.
fn output(expert: u32, row: &[f32]) -> Vec<f32> {
    row.iter().map(|value| value * (expert + 2) as f32 + 0.1).collect()
}

/// Random rows of one exchange with their expert ids, some of which are `NO_EXPERT`.
fn rows(random: &mut Random, width: usize, top_k: usize) -> (Vec<f32>, Vec<u32>) {
    let count = [0, 1, 2, 9, 30][random.below(5) as usize];
    let rows = (0..count * width).map(|_| random.unit()).collect();
    let mut experts = Vec::new();
    for _ in 0..count {
        let first = random.below(7) as u32;
        let used = random.between(0, top_k as u32) as usize;
        let own = (0..top_k as u32).map(|at| (first + at * 2) % 7).enumerate();
        experts.extend(own.map(|(at, expert)| if at < used { expert } else { NO_EXPERT }));
    }
    (rows, experts)
}

#[test]
fn every_chosen_expert_returns_its_output() {
    for (seed, replicas, chunk_rows) in [(1, 2, 4), (2, 3, 1), (3, 5, 7), (4, 2, 64)] {
        thread::scope(|scope| {
            for member in group(replicas, chunk_rows) {
                scope.spawn(move || {
                    let mut random = Random::new(seed * 100 + member.replica as u64);
                    let local = member.replica * 7 / replicas..(member.replica + 1) * 7 / replicas;
                    let mut counts = Vec::new();
                    for step in 0..40 {
                        member.join(step * 10 + member.replica as u32, &mut counts).unwrap();
                        let expected: Vec<u32> =
                            (0..replicas as u32).map(|replica| step * 10 + replica).collect();
                        assert_eq!(counts, expected);
                        for (width, top_k) in [(5, 3), (4, 2)] {
                            let (rows, experts) = rows(&mut random, width, top_k);
                            let mut outputs = vec![0.0; experts.len() * width];
                            let mut compute = |received: DispatchRows<'_>, store: &StoreOutput<'_>| {
                                assert!(received.experts.len() <= member.max_rows() * top_k);
                                for (entry, expert) in received.experts.iter().enumerate() {
                                    assert!(*expert == NO_EXPERT || local.contains(&(*expert as usize)));
                                    if *expert != NO_EXPERT {
                                        let row = &received.rows[entry / top_k * width..][..width];
                                        store(entry, &output(*expert, row));
                                    }
                                }
                            };
                            let own = DispatchRows { rows: &rows, width, experts: &experts, top_k };
                            member.exchange(own, local.clone(), &mut compute, &mut outputs).unwrap();
                            for (entry, expert) in experts.iter().enumerate() {
                                let row = &rows[entry / top_k * width..][..width];
                                let expected = if *expert == NO_EXPERT {
                                    vec![0.0; width]
                                } else {
                                    output(*expert, row)
                                };
                                assert_eq!(
                                    outputs[entry * width..][..width],
                                    expected,
                                    "seed {seed} step {step}"
                                );
                            }
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn replicas_at_different_exchanges_are_errors() {
    let results: Vec<Result<(), StepError>> = thread::scope(|scope| {
        let run = |member: Arc<ExpertGroupMember>| {
            scope.spawn(move || {
                member.join(1, &mut Vec::new()).unwrap();
                let top_k = 1 + member.replica;
                let experts = vec![NO_EXPERT; top_k];
                let own = DispatchRows { rows: &[0.0; 5], width: 5, experts: &experts, top_k };
                member.exchange(own, 0..1, &mut |_, _| {}, &mut [0.0; 10])
            })
        };
        let running: Vec<_> = group(2, 4).into_iter().map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for result in results {
        let Err(StepError::Lost(why)) = result else { panic!("{result:?}") };
        assert!(why.contains("out of step"), "{why}");
    }
}

#[test]
fn an_idle_replica_is_woken_for_each_step_of_another() {
    let [first, second]: [Arc<ExpertGroupMember>; 2] = group(2, 4).try_into().ok().unwrap();
    let (inbox, messages) = mpsc::channel();
    let joining = thread::spawn(move || {
        let mut inbox = LockstepInbox::start(Arc::clone(&second), &messages, inbox, Arc::default()).unwrap();
        let (mut joined, mut counts) = (0, Vec::new());
        while joined < 200 {
            assert_eq!(inbox.receive(None), Ok(Message::JoinStep));
            // The replica may already have joined the step of this message.
            if second.is_behind() {
                second.join(0, &mut counts).unwrap();
                joined += 1;
                assert_eq!(counts, [joined, 0]);
            }
        }
        second
    });
    let mut states = Vec::new();
    for step in 1..=200 {
        let state = ReplicaState { prefillable: true, pending_tokens: 1 << 33, running_decode: step.into() };
        first.lockstep().exchange_states(state, &mut states);
        first.join(step, &mut Vec::new()).unwrap();
        if step.is_multiple_of(50) {
            // Lets the other replica fall asleep.
            thread::sleep(Duration::from_millis(5));
        }
    }
    let second = joining.join().unwrap();
    states.clear();
    second.lockstep().exchange_states(ReplicaState::default(), &mut states);
    assert_eq!(states, [ReplicaState { prefillable: true, pending_tokens: 1 << 33, running_decode: 200 }]);
    assert!(!first.is_behind() && !second.is_behind());
}

//! Tests of rings and collectives between threads, each with its own mapping of the shared memory.

use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::contributions::Contributions;
use crate::ranks::endpoint::Endpoint;
use crate::ranks::layout::Layout;
use crate::ranks::member::Member;
use crate::ranks::memory::SharedMemory;
use crate::ranks::ring_error::RingError;
use crate::ranks::step_hashes::StepHashes;
use kvasir_exec::{AllGatherBuffers, BatchRow, RankControl, Ranks, RowKind, Step, StepError};
use kvasir_kv::Span;
use kvasir_testkit::Random;
use kvasir_testkit::ranks::ThreadRank;
use std::{sync::Arc, thread, time::Duration};

/// The endpoints of a group with this layout.
fn endpoints(layout: Layout) -> Vec<Endpoint> {
    let (words, lines) = (layout.words(), layout.lines());
    let (memory, file) = SharedMemory::create(words, lines, layout.ranks).unwrap();
    let open = |_| SharedMemory::open(&file, words, lines, layout.ranks).unwrap();
    let memories = std::iter::once(memory).chain((1..layout.ranks).map(open));
    memories.enumerate().map(|(rank, memory)| Endpoint::new(memory, layout, rank)).collect()
}

fn records(seed: u64) -> Vec<(u32, Vec<u32>)> {
    let mut random = Random::new(seed);
    let body = |random: &mut Random| (0..random.below(150)).map(|_| random.below(1 << 32) as u32).collect();
    (0..200).map(|_| (random.below(9) as u32, body(&mut random))).collect()
}

#[test]
fn every_rank_reads_all_records_in_order() {
    for seed in 0..20 {
        // Some records are longer than the ring.
        let mut endpoints = endpoints(Layout { ranks: 3, ring_words: 64, chunk_words: 8 }).into_iter();
        let first = endpoints.next().unwrap();
        thread::scope(|scope| {
            for endpoint in endpoints {
                scope.spawn(move || {
                    let (mut ring, mut body) = (BroadcastRing::new(1), Vec::new());
                    for (kind, expected) in records(seed) {
                        assert_eq!(ring.read(&endpoint, &mut body), Ok(kind));
                        assert_eq!(body, expected, "seed {seed}");
                    }
                });
            }
            let mut ring = BroadcastRing::new(1);
            records(seed).iter().for_each(|(kind, body)| ring.write(&first, *kind, body).unwrap());
        });
    }
}

#[test]
fn corrupt_records_are_errors() {
    let mut found = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let [first, second] =
            endpoints(Layout { ranks: 2, ring_words: 64, chunk_words: 8 }).try_into().ok().unwrap();
        let body: Vec<u32> = (0..40).map(|_| random.below(1 << 32) as u32).collect();
        BroadcastRing::new(0).write(&first, 3, &body).unwrap();
        let (at, bit) = (random.below(44) as usize, random.below(32));
        let mut word = [0];
        // SAFETY: nothing else accesses the memory.
        unsafe {
            first.memory.read(first.layout.ring(0) + at, &mut word);
            first.memory.write(first.layout.ring(0) + at, &[word[0] ^ 1 << bit]);
        }
        // Ends the wait if the corrupt length exceeds the published words.
        first.mark_lost(0);
        let read = BroadcastRing::new(0).read(&second, &mut Vec::new());
        assert!(read.is_err(), "seed {seed}");
        found += u32::from(matches!(read, Err(RingError::OutOfStep { .. })));
    }
    assert!(found > 180, "{found}");
}

#[test]
fn collectives_equal_those_of_thread_ranks_bitwise() {
    for (seed, ranks) in [(1, 2), (2, 3), (3, 5)] {
        let run = |rank: &dyn Ranks, number: usize| {
            let (mut random, mut own) = (Random::new(seed), Random::new(seed * 100 + number as u64));
            let mut results = Vec::new();
            for _ in 0..60 {
                let (rows, width) = (random.between(0, 9) as usize, random.between(1, 30) as usize);
                let mut numbers: Vec<f32> =
                    (0..rows * width).map(|_| own.below(2000) as f32 / 7.0 - 140.0).collect();
                let mut all = vec![0.0; rows * width * ranks];
                AllGatherBuffers::default()
                    .all_gather(rank, &numbers, width, &mut all, width * ranks)
                    .unwrap();
                rank.all_reduce(&mut numbers).unwrap();
                results.extend(numbers.iter().chain(&all).map(|number| number.to_bits()));
            }
            results
        };
        let layout = Layout { ranks, ring_words: 8, chunk_words: 16 };
        let members = endpoints(layout).into_iter().map(|endpoint| {
            let contributions = Contributions::new();
            contributions.begin_step();
            Member { endpoint, contributions }
        });
        let (members, threads): (Vec<_>, _) = (members.collect(), ThreadRank::all(ranks));
        let all = thread::scope(|scope| {
            let own = members.iter().enumerate().map(|(n, rank)| scope.spawn(move || run(rank, n)));
            let own: Vec<_> = own.collect();
            let other = threads.iter().enumerate().map(|(n, rank)| scope.spawn(move || run(rank, n)));
            let other: Vec<_> = other.collect();
            let join = |threads: Vec<thread::ScopedJoinHandle<'_, Vec<u32>>>| {
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            };
            (join(own), join(other))
        });
        assert_eq!(all.0, all.1, "{ranks} ranks");
        assert!(all.0.iter().all(|bits| *bits == all.0[0]));
    }
}

fn members(count: usize) -> Vec<Member> {
    let layout = Layout { ranks: count, ring_words: 64, chunk_words: 16 };
    let member = |endpoint| Member { endpoint, contributions: Contributions::new() };
    endpoints(layout).into_iter().map(member).collect()
}

#[test]
fn ranks_out_of_step_are_errors() {
    let [first, second] = members(2).try_into().ok().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            second.contributions.begin_step();
            second.all_reduce(&mut [1.0; 3])
        });
        first.contributions.begin_step();
        let errors = [first.all_reduce(&mut [1.0; 4]), other.join().unwrap()];
        let is_out_of_step = |error: &Result<(), StepError>| matches!(error, Err(StepError::Lost(why)) if why.contains("out of step"));
        assert!(errors.iter().all(is_out_of_step), "{errors:?}");
    });
}

#[test]
fn an_aborted_step_fails_on_every_rank() {
    let [first, second] = members(2).try_into().ok().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            for is_aborted in [true, true, false, true, false] {
                second.contributions.begin_step();
                let result = second.finish_step(second.all_reduce(&mut [1.0]));
                assert_eq!(matches!(result, Err(StepError::Failed(_))), is_aborted, "{result:?}");
            }
        });
        for is_aborted in [true, true, false, true, false] {
            first.contributions.begin_step();
            let mut row = [2.0];
            let own =
                if is_aborted { Err(StepError::Failed("no".into())) } else { first.all_reduce(&mut row) };
            assert_eq!(first.finish_step(own).is_err(), is_aborted);
            assert!(is_aborted || row == [3.0]);
        }
        other.join().unwrap();
    });
    // An abort by another rank than 0 ends the group.
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            second.contributions.begin_step();
            second.finish_step(Err(StepError::Failed("no".into())))
        });
        first.contributions.begin_step();
        assert!(matches!(first.all_reduce(&mut [1.0]), Err(StepError::Lost(_))));
        assert!(other.join().unwrap().is_err());
    });
}

#[test]
fn a_lost_rank_fails_every_wait() {
    let [first, second, third] = members(3).try_into().ok().unwrap();
    thread::scope(|scope| {
        let sum = scope.spawn(|| first.all_reduce(&mut [1.0]));
        let read = scope.spawn(|| BroadcastRing::new(0).read(&second.endpoint, &mut Vec::new()));
        // Both ranks are asleep by then.
        thread::sleep(Duration::from_millis(50));
        third.endpoint.mark_lost(2);
        assert_eq!(sum.join().unwrap(), Err(StepError::Lost("rank 2 has ended".into())));
        assert_eq!(read.join().unwrap(), Err(RingError::Lost(2)));
    });
}

/// A decode step with one row.
fn step(request: u64) -> Step {
    let mut step = Step::default();
    step.batch.tokens.push(7);
    let (kind, tokens) = (RowKind::Decode, Span::new(0, 1));
    step.batch.rows.push(BatchRow { request, kind, tokens, ..BatchRow::default() });
    step
}

#[test]
fn differing_steps_end_the_group_and_are_logged() {
    let [first, second] = members(2).try_into().ok().unwrap();
    let (first, second) = (Arc::new(first), Arc::new(second));
    let run = |member: Arc<Member>, request: u64| {
        let (mut control, mut step) = (StepHashes::new(Arc::clone(&member)), step(request));
        control.begin_step(&step)?;
        let result = member.all_reduce(&mut [1.0]);
        control.end_step(&mut step, result)
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(Arc::clone(&second), 6));
        let errors = [run(first, 5), other.join().unwrap()].map(Result::unwrap_err);
        assert!(matches!(&errors[0], StepError::Lost(why) if why.contains("[5 Decode 1")), "{errors:?}");
        let diverges = |why: &str| why.contains("rank 1 diverges") && why.contains("[6 Decode 1");
        assert!(matches!(&errors[1], StepError::Lost(why) if diverges(why)), "{errors:?}");
    });
}

#[test]
fn every_rank_gets_the_output_of_rank_0() {
    let [first, second] = members(2).try_into().ok().unwrap();
    let (first, second) = (Arc::new(first), Arc::new(second));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let (mut control, mut step) = (StepHashes::new(Arc::clone(&second)), step(5));
            control.begin_step(&step).unwrap();
            control.end_step(&mut step, second.all_reduce(&mut [1.0])).unwrap();
            step.output
        });
        let (mut control, mut step) = (StepHashes::new(Arc::clone(&first)), step(5));
        control.begin_step(&step).unwrap();
        step.output.tokens.push(9);
        step.output.device_ns = 77;
        control.end_step(&mut step, first.all_reduce(&mut [1.0])).unwrap();
        assert_eq!(other.join().unwrap(), step.output);
    });
}

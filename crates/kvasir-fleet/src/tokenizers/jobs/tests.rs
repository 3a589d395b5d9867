//! Job assignment under random losses and cancellations, and by load.

use super::*;
use kvasir_testkit::Random;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

type Results = Arc<Mutex<HashMap<u64, Vec<Result<Outcome, RemoteTokenizerError>>>>>;

fn add(jobs: &mut Jobs, results: &Results, id: u64, work: Work) {
    let results = Arc::clone(results);
    let reply = move |result| results.lock().unwrap().entry(id).or_default().push(result);
    jobs.add(id, work, Box::new(reply));
}

fn encode(length: usize) -> Work {
    Work::Encode { text: "a".repeat(length), add_special: false }
}

#[test]
fn every_job_gets_one_result_despite_lost_processes() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let processes = random.between(1, 4) as usize;
        let (mut jobs, results) = (Jobs::new(processes), Results::default());
        let (mut next, mut canceled, mut losses) = (1, Vec::new(), HashMap::<u64, u32>::new());
        let mut assigned: Vec<Vec<u64>> = vec![Vec::new(); processes];
        let total = 120;
        while next <= total || !jobs.open.is_empty() {
            match random.below(8) {
                0 | 1 if next <= total => {
                    add(&mut jobs, &results, next, Work::Decode { ids: vec![7; next as usize] });
                    next += 1;
                }
                2 => {
                    let lost = random.below(processes as u64) as usize;
                    // Rarely, so that few jobs reach `MAX_LOSSES`.
                    if random.below(8) == 0 {
                        jobs.process_lost(lost);
                        for id in assigned[lost].drain(..) {
                            *losses.entry(id).or_default() += 1;
                        }
                    }
                }
                3 if next > 1 && random.below(4) == 0 => {
                    let id = u64::from(random.between(1, next as u32 - 1));
                    if !results.lock().unwrap().contains_key(&id) {
                        jobs.cancel(id);
                        canceled.push(id);
                    }
                }
                4 => jobs.process_ready(random.below(processes as u64) as usize),
                5 => {
                    let from = random.below(processes as u64) as usize;
                    // A result of a process that does not run the job is ignored.
                    let id = u64::from(random.between(1, total as u32));
                    if !assigned[from].contains(&id) {
                        jobs.complete(from, id, Outcome::Text("wrong".into())).unwrap();
                    }
                }
                _ => {
                    let from = random.below(processes as u64) as usize;
                    if !assigned[from].is_empty() {
                        let at = random.below(assigned[from].len() as u64) as usize;
                        let id = assigned[from].swap_remove(at);
                        jobs.complete(from, id, Outcome::Text(id.to_string())).unwrap();
                    }
                }
            }
            for (process, ids) in jobs.assign().into_iter().enumerate() {
                assert!(ids.is_empty() || jobs.load(process).is_ready);
                assigned[process].extend(ids);
            }
            if next > total {
                (0..processes).for_each(|process| jobs.process_ready(process));
            }
        }
        assert!(jobs.open.is_empty(), "seed {seed}");
        assert!((0..processes).all(|process| (jobs.load(process).jobs, jobs.load(process).cost) == (0, 0)));
        let results = results.lock().unwrap();
        for id in 1..=total {
            let got = results.get(&id).map_or(&[][..], Vec::as_slice);
            let is_failed =
                |result: &Result<Outcome, _>| matches!(result, Err(RemoteTokenizerError::Unavailable(_)));
            match got {
                [] => assert!(canceled.contains(&id), "seed {seed}, job {id}"),
                [one] if losses.get(&id).is_some_and(|losses| *losses >= MAX_LOSSES) => {
                    assert!(is_failed(one), "seed {seed}, job {id}: {one:?}");
                }
                [one] => assert_eq!(*one, Ok(Outcome::Text(id.to_string())), "seed {seed}, job {id}"),
                more => panic!("seed {seed}, job {id}: {more:?}"),
            }
        }
    }
}

#[test]
fn a_job_that_crashes_processes_fails_and_streams_continue() {
    let (mut jobs, results) = (Jobs::new(2), Results::default());
    add(&mut jobs, &results, 1, encode(10));
    add(&mut jobs, &results, 2, Work::Detokenize { state: Default::default(), tokens: vec![1] });
    for loss in 0..2 * MAX_LOSSES as usize {
        jobs.process_ready(loss % 2);
        assert_eq!(jobs.assign()[loss % 2].contains(&1), loss < MAX_LOSSES as usize);
        jobs.process_lost(loss % 2);
    }
    let results = results.lock().unwrap();
    assert!(matches!(results[&1][..], [Err(RemoteTokenizerError::Unavailable(_))]), "{results:?}");
    assert!(!results.contains_key(&2));
}

#[test]
fn jobs_go_to_the_process_with_the_least_load() {
    let (mut jobs, results) = (Jobs::new(3), Results::default());
    (0..2).for_each(|process| jobs.process_ready(process));
    for (id, length) in [(1, 1000), (2, 10), (3, 10), (4, 10)] {
        add(&mut jobs, &results, id, encode(length));
    }
    assert_eq!(jobs.assign(), [vec![1], vec![2, 3, 4], vec![]]);
    assert_eq!(jobs.complete(0, 1, Outcome::Text(String::new())), Err(WrongOutcome));
    jobs.complete(0, 1, Outcome::Tokens(vec![5])).unwrap();
    assert_eq!(results.lock().unwrap()[&1], [Ok(Outcome::Tokens(vec![5]))]);
    assert_eq!(jobs.load(0), Load { is_ready: true, jobs: 0, cost: 0, completed: 1 });
}

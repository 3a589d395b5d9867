//! Main randomized test of the scheduler on the toy device, whose output depends on every KV slot
//! it reads.
//!
//! Property: each completion equals that of its request run alone, whatever is batched, chunked,
//! cached, preempted, drafted, overlapped, aborted or failed. The KV pool returns to its baseline.
//!
//! `KVASIR_WORKLOADS=100000 cargo test --release -p kvasir-engine --test toy` runs more seeds, from
//! `KVASIR_FIRST` on. `points.rs` adds exhaustive fault injection on one small workload;
//! `KVASIR_POINTS=all` runs it on every combination of cache, policy, drafting and overlap.

#![allow(clippy::panic)] // a test

mod draft_traces;
mod drafter;
mod flaky;
mod points;
mod reasons;
mod workload;

use kvasir_engine::{Chunked, Core, Engine, Exit, Limits, Mixing, Order, Request};
use kvasir_kv::Contiguous;
use kvasir_sim::Toy;
use kvasir_testkit::env_number;

#[test]
fn every_completion_equals_its_request_run_alone() {
    let count = env_number("KVASIR_WORKLOADS", 4000);
    let first = env_number("KVASIR_FIRST", 0);
    let begin = std::time::Instant::now();
    let mut wrong = Vec::new();
    let mut seen = workload::Coverage::default();
    for seed in first..first + count {
        if let Err(why) = workload::run(seed, &mut seen) {
            wrong.push(why);
        }
    }
    println!("{count} workloads in {:.1?}: {seen:?}", begin.elapsed());
    let shown: Vec<_> = wrong.iter().take(3).collect();
    assert!(
        wrong.is_empty(),
        "{} of {count} workloads are wrong, first:\n{}",
        wrong.len(),
        shown.iter().map(|s| s.as_str()).collect::<Vec<_>>().join("\n\n")
    );
    if count >= 1000 {
        let workload::Coverage {
            completed,
            preemptions,
            hits,
            accepted,
            aborted,
            failed,
            capacity,
            refused,
            lost,
            shifted,
            recurrent,
            windowed,
        } = seen;
        let all = [completed, preemptions, hits, accepted, aborted, failed, capacity, refused, lost, shifted];
        let of_groups = [recurrent, windowed].into_iter().flat_map(|group| {
            let workload::GroupCoverage { completed, preemptions, hits, accepted, failed, shifted } = group;
            [completed, preemptions, hits, accepted, failed, shifted]
        });
        let all = all.into_iter().chain(of_groups);
        assert!({ all }.all(|count| count > 0), "some counter is 0");
    }
}

/// A stale plan (cache generation changed since planning) must never be submitted. Nothing causes
/// one; if it happened, the engine must notice.
#[test]
fn stale_plan_is_never_submitted() {
    let cache = flaky::Flaky { stale: true, ..flaky::Flaky::new(Box::new(Contiguous::new(16)), |_| false) };
    let policy = Box::new(Chunked::new(64, Mixing::Off));
    let core = Core::new(Limits::default(), Order::Fcfs, policy, Box::new(cache));
    let mut engine = Engine::new(core, Toy::new(), || 0);
    let request = Request { prompt: vec![100, 101], ..Request::default() };
    assert!(engine.add_request(request).is_ok());
    let exit = engine.step();
    assert!(matches!(&exit, Err(Exit::Broken(why)) if why.contains("generation")), "{exit:?}");
}

#[test]
fn faults_at_any_point_lose_or_repeat_no_other_token() {
    let all = std::env::var_os("KVASIR_POINTS").is_some();
    let begin = std::time::Instant::now();
    let mut runs = 0;
    for setup in points::setups(all) {
        runs += points::every_point(&setup).unwrap_or_else(|why| panic!("{why}\n{setup:?}"));
    }
    println!("{runs} runs in {:.1?}", begin.elapsed());
    assert!(runs > 3000, "only {runs} points were found");
}

//! Collectives between [`ThreadRank`]s: shards of unequal width, and long sequences of collectives.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_exec::{AllGatherBuffers, Ranks};
use kvasir_testkit::ranks::ThreadRank;

#[test]
fn shards_of_unequal_width_are_gathered_without_padding() {
    let gathered: Vec<Vec<f32>> = std::thread::scope(|s| {
        let run = |(at, rank): (usize, ThreadRank)| {
            s.spawn(move || {
                // Rows of 7 values, in shards of 3, 3 and 1.
                let own: Vec<f32> = (0..2)
                    .flat_map(|row| (at * 3..7.min(at * 3 + 3)).map(move |n| (row * 10 + n) as f32))
                    .collect();
                let mut all = vec![0.0; 14];
                AllGatherBuffers::default().all_gather(&rank, &own, own.len() / 2, &mut all, 7).unwrap();
                all
            })
        };
        let running: Vec<_> = ThreadRank::all(3).into_iter().enumerate().map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let expected: Vec<f32> = (0..2).flat_map(|row| (0..7).map(move |n| (row * 10 + n) as f32)).collect();
    assert!(gathered.iter().all(|all| *all == expected), "{gathered:?}");
}

#[test]
fn repeated_collectives_give_all_ranks_the_same_results() {
    let results: Vec<_> = std::thread::scope(|s| {
        let run = |(at, rank): (usize, ThreadRank)| {
            s.spawn(move || {
                let mut seen = Vec::new();
                for round in 0..100 {
                    let mut rows = [at as f32 + 1.0, round as f32];
                    rank.all_reduce(&mut rows).unwrap();
                    seen.extend(rows);
                    let mut all = [0.0; 6];
                    rank.all_gather(&[at as f32, round as f32], 1, &mut all).unwrap();
                    seen.extend(all);
                }
                seen
            })
        };
        let running: Vec<_> = ThreadRank::all(3).into_iter().enumerate().map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let round = |n: usize| {
        let n = n as f32;
        [6.0, 3.0 * n, 0.0, 1.0, 2.0, n, n, n]
    };
    let expected: Vec<f32> = (0..100).flat_map(round).collect();
    assert!(results.iter().all(|seen| *seen == expected), "{results:?}");
}

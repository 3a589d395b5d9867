//! Benchmark of the pool of recurrent states: times of decode steps, `publish` and `attach` of one
//! long sequence whose checkpoints fill the pool.
//!
//! `cargo bench -p kvasir-kv --bench states`. A sequence of 200,000 tokens stores a checkpoint at
//! every second token, up to 100,000. Then each step evicts a checkpoint to store another one.

#![allow(missing_docs, clippy::unwrap_used)]

use kvasir_kv::{
    CacheConfig, CacheKind, ClaimRow, Lookup, Plan, RecomputeCosts, StateConfig, StepId, Token, build,
};
use std::time::Instant;

const TOKENS: u32 = 200_000;

/// Prints minimum, median and maximum of times in microseconds.
fn print_times(label: &str, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    let (min, median, max) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    println!("{label:<52} {min:>9.3} {median:>9.3} {max:>9.3}");
}

fn main() {
    println!("{:<52} {:>9} {:>9} {:>9}", "microseconds", "minimum", "median", "maximum");
    for checkpoints in [100, 10_000, 100_000] {
        let states = StateConfig { live: 2, checkpoints, tail_rows: 4, interval: 2 };
        let config = CacheConfig { block_size: 1, states: Some(states), ..CacheConfig::new(2 * TOKENS) };
        let mut cache = build(CacheKind::Paged, &config).unwrap();
        let tokens: Vec<Token> = (0..TOKENS + 2000).collect();
        let seq = cache.open().unwrap();
        let (mut step, mut plan) = (0, Plan::default());
        let mut run_step = |cache: &mut dyn kvasir_kv::Cache, count: u32| {
            step += 1;
            let start = Instant::now();
            cache.claim(StepId(step), &[ClaimRow::new(seq, count)]).unwrap();
            cache.plan(StepId(step), &mut plan).unwrap();
            cache.retire(StepId(step)).unwrap();
            start.elapsed().as_secs_f64() * 1e6
        };
        (0..TOKENS / 1000).for_each(|_| _ = run_step(&mut *cache, 1000));
        let mut times: Vec<f64> = (0..400).map(|_| run_step(&mut *cache, 1)).collect();
        print_times(&format!("decode step, {checkpoints} checkpoints"), &mut times);
        cache.set_recompute_costs(RecomputeCosts { token: 100, depth: 3 });
        let mut times: Vec<f64> = (0..400).map(|_| run_step(&mut *cache, 1)).collect();
        print_times(&format!("decode step after new costs, {checkpoints} checkpoints"), &mut times);
        let prefix = cache.prefix().unwrap();
        prefix.publish(seq, &tokens, TOKENS + 800).unwrap();
        let mut times: Vec<f64> = (TOKENS + 801..TOKENS + 851)
            .map(|upto| {
                run_step(&mut *cache, 1);
                let start = Instant::now();
                cache.prefix().unwrap().publish(seq, &tokens, upto).unwrap();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        print_times(&format!("publish a block, {checkpoints} checkpoints"), &mut times);
        let mut times: Vec<f64> = (0..10)
            .map(|_| {
                let other = cache.open().unwrap();
                let start = Instant::now();
                let prefix = cache.prefix().unwrap();
                prefix.attach(other, &tokens[..TOKENS as usize], 0, u32::MAX, Lookup::default()).unwrap();
                let time = start.elapsed().as_secs_f64() * 1e6;
                cache.close(other).unwrap();
                time
            })
            .collect();
        print_times(&format!("attach 200,000 tokens, {checkpoints} checkpoints"), &mut times);
    }
}

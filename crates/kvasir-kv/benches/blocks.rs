//! Benchmark of the block caches: prefix lookup, eviction, decode step (claim, plan, retire) and
//! admission, beside published or measured figures of peers.
//!
//! `cargo bench -p kvasir-kv --bench blocks`. Each figure is the minimum of many samples, in
//! microseconds, because noise on a shared machine only adds; the median stands beside it. Peers'
//! figures are of CPython engines on a machine of the same class (`reference: notes on Mini-SGLang
//! and nano-vLLM, section 5`), minimum of 31 samples or more.

#![allow(missing_docs, clippy::unwrap_used)]

use kvasir_kv::blocks::{BlockCache, BlockConfig, Index};
use kvasir_kv::{Cache, ClaimRow, Lookup, Paged, Plan, Prefix, Radix, SeqId, StepId, Token};
use std::hint::black_box;
use std::time::Instant;

const MINISGL: &str = "Mini-SGLang";
const NANO: &str = "nano-vLLM";

/// Minimum and median time of one call, in microseconds; `batch` calls are timed together.
fn time(samples: usize, batch: u32, mut call: impl FnMut()) -> (f64, f64) {
    let mut times: Vec<f64> = (0..samples)
        .map(|_| {
            let start = Instant::now();
            (0..batch).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e6 / f64::from(batch)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[samples / 2])
}

/// Prints one figure beside a peer's.
fn line(what: &str, (least, median): (f64, f64), peer: Option<(&str, f64)>) {
    let beside = peer.map(|(name, us)| format!("{name} {us:>8.1}   {:>7.0} times", us / least));
    println!("{what:<58} {least:>9.3} {median:>9.3}   {}", beside.unwrap_or_default());
}

fn config(block_size: u32, tokens: u32) -> BlockConfig {
    BlockConfig {
        block_size,
        blocks: tokens.div_ceil(block_size),
        max_sequences: 8192,
        ..BlockConfig::default()
    }
}

fn prompt(seed: u32, len: u32) -> Vec<Token> {
    (0..len)
        .map(|i| (i + 1).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 12)
        .collect()
}

/// One request: attaches a prompt, computes the rest, publishes and closes.
fn leave<I: Index>(cache: &mut BlockCache<I>, step: &mut u64, tokens: &[Token]) {
    let seq = cache.open().unwrap();
    let hit = cache.attach(seq, tokens, 0, u32::MAX, Lookup::default()).unwrap();
    *step += 1;
    let tokens_left = tokens.len() as u32 - hit.tokens;
    cache.claim(StepId(*step), &[ClaimRow::new(seq, tokens_left)]).unwrap();
    cache.retire(StepId(*step)).unwrap();
    cache.publish(seq, tokens, tokens.len() as u32).unwrap();
    cache.close(seq).unwrap();
}

fn look<I: Index>(cache: &mut BlockCache<I>, tokens: &[Token]) {
    black_box(cache.lookup(black_box(tokens), 0));
}

/// Prefix lookup, hits and misses.
fn matching() {
    for (page, peers) in [(1, [6.9, 8.8, 15.5]), (16, [7.5, 9.3, 16.4]), (256, [11.4, 13.3, 20.0])] {
        for (len, peer) in [1024, 8192, 32768].into_iter().zip(peers) {
            let mut cache = Radix::new(config(page, 1 << 17)).unwrap();
            let mut tokens = prompt(1, len + page);
            leave(&mut cache, &mut 0, &tokens);
            tokens.truncate(len as usize + 1);
            let found = time(200, 20, || look(&mut cache, &tokens));
            line(&format!("radix: match {len} tokens, one node, page {page}"), found, Some((MINISGL, peer)));
        }
    }
    for (nodes, peers) in
        [(8, [45.0, 47.0]), (32, [170.0, 181.0]), (128, [674.0, 687.0]), (512, [2832.0, 2723.0])]
    {
        for (page, peer) in [1, 16].into_iter().zip(peers) {
            let mut cache = Radix::new(config(page, 1 << 17)).unwrap();
            let (tokens, mut step) = (prompt(1, 8193), 0);
            (1..=nodes).for_each(|n| leave(&mut cache, &mut step, &tokens[..(8192 * n / nodes) as usize]));
            assert_eq!(cache.index().tree().nodes(), nodes as usize);
            let found = time(200, 5, || look(&mut cache, &tokens));
            line(
                &format!("radix: match 8192 tokens, {nodes} nodes, page {page}"),
                found,
                Some((MINISGL, peer)),
            );
        }
    }
    for (leaves, peer) in [(100, 9.0), (10_000, 9.5)] {
        let (mut cache, mut step) = (Radix::new(config(1, 1 << 18)).unwrap(), 0);
        (0..leaves).for_each(|n| leave(&mut cache, &mut step, &prompt(n + 2, 16)));
        let tokens = prompt(1, 8193);
        leave(&mut cache, &mut step, &tokens);
        let found = time(200, 20, || look(&mut cache, &tokens));
        line(
            &format!("radix: match 8192 tokens among {leaves} leaves, page 1"),
            found,
            Some((MINISGL, peer)),
        );
        if leaves == 10_000 {
            let other = prompt(50_000, 100);
            let miss = time(200, 100, || look(&mut cache, &other));
            line("radix: miss at the root of 10000 leaves, page 1", miss, Some((MINISGL, 2.9)));
        }
    }
    for (len, peer) in [(1024, Some(22.0)), (8192, Some(227.0)), (32768, Some(917.0))] {
        let mut cache = Paged::new(config(16, 1 << 17)).unwrap();
        let tokens = prompt(1, len + 1);
        leave(&mut cache, &mut 0, &tokens);
        let found = time(200, 2, || look(&mut cache, &tokens));
        let peer = peer.map(|us| ("nano-vLLM (block 256)", us));
        line(&format!("paged: find {len} tokens, block 16"), found, peer);
    }
}

/// LRU eviction of one leaf.
fn evicting() {
    for (leaves, peer) in [(100, 24.0), (1000, 158.0), (10_000, 1439.0)] {
        let mut times = Vec::new();
        let mut step = 0;
        let mut cache = Radix::new(config(16, (leaves + 1) * 16)).unwrap();
        for n in 0..leaves {
            leave(&mut cache, &mut step, &prompt(n + 1, 16));
        }
        // One leaf is evicted and one added, so the tree keeps its size.
        for n in 0..2000 {
            let start = Instant::now();
            let evicted = cache.evict(1).unwrap();
            times.push(start.elapsed().as_secs_f64() * 1e6);
            assert_eq!(evicted, 16);
            leave(&mut cache, &mut step, &prompt(leaves + n + 1, 16));
        }
        times.sort_by(f64::total_cmp);
        let evicted = (times[0], times[1000]);
        line(&format!("radix: evict one leaf of {leaves}, page 16"), evicted, Some((MINISGL, peer)));
    }
}

/// A decode step of `batch` sequences of about 1000 tokens: claim, plan and retire.
fn decoding<I: Index>(name: &str, mut cache: BlockCache<I>, batch: u32, peers: &[(&str, f64)]) {
    let seqs: Vec<SeqId> = (0..batch).map(|_| cache.open().unwrap()).collect();
    let rows = |tokens| seqs.iter().map(move |&seq| ClaimRow::new(seq, tokens)).collect::<Vec<_>>();
    cache.claim(StepId(1), &rows(1000)).unwrap();
    cache.retire(StepId(1)).unwrap();
    let (rows, mut plan, mut step) = (rows(1), Plan::default(), 1);
    let mut parts = [const { Vec::new() }; 3];
    for _ in 0..if batch > 1000 { 300 } else { 1000 } {
        step += 1;
        let start = Instant::now();
        cache.claim(StepId(step), &rows).unwrap();
        let claimed = Instant::now();
        cache.plan(StepId(step), &mut plan).unwrap();
        let planned = Instant::now();
        cache.retire(StepId(step)).unwrap();
        let retired = Instant::now();
        black_box(&plan);
        let spans = [claimed - start, planned - claimed, retired - planned];
        spans.into_iter().zip(&mut parts).for_each(|(span, part)| part.push(span.as_secs_f64() * 1e6));
        if step % 16 == 0 {
            // Keeps the sequences near 1000 tokens.
            seqs.iter().for_each(|&seq| cache.rewind().unwrap().rewind_to(seq, 1000).unwrap());
        }
    }
    let mut whole: Vec<f64> = (0..parts[0].len()).map(|i| parts.iter().map(|part| part[i]).sum()).collect();
    whole.sort_by(f64::total_cmp);
    let least = |part: &Vec<f64>| part.iter().copied().fold(f64::INFINITY, f64::min);
    let what = format!("{name}: decode step of {batch}, block {}", cache.shape().block_size);
    line(&what, (whole[0], whole[whole.len() / 2]), peers.first().copied());
    peers.iter().skip(1).for_each(|&peer| line("", (whole[0], whole[whole.len() / 2]), Some(peer)));
    println!(
        "{:<58} {:>9.3} claim, {:.3} plan, {:.3} retire",
        "",
        least(&parts[0]),
        least(&parts[1]),
        least(&parts[2])
    );
}

/// Admission of a prompt of 8192 tokens: lookup, open, attach, claim. Retirement and closing are
/// not timed.
fn admitting<I: Index>(name: &str, mut cache: BlockCache<I>, hit: bool, peer: Option<(&str, f64)>) {
    let mut step = 0;
    let mut times = Vec::new();
    let shared = prompt(1, 8192);
    leave(&mut cache, &mut step, &shared);
    for n in 0..400 {
        let fresh = prompt(n + 2, 8192);
        let tokens = if hit { &shared } else { &fresh };
        step += 1;
        let start = Instant::now();
        let found = cache.lookup(tokens, 0);
        let seq = cache.open().unwrap();
        cache.attach(seq, tokens, 0, u32::MAX, found.lookup).unwrap();
        cache.claim(StepId(step), &[ClaimRow::new(seq, 8192 - found.tokens)]).unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
        cache.retire(StepId(step)).unwrap();
        cache.close(seq).unwrap();
    }
    times.sort_by(f64::total_cmp);
    let kind = if hit { "all found" } else { "none found" };
    let what = format!("{name}: admit 8192 tokens, {kind}, block {}", cache.shape().block_size);
    line(&what, (times[0], times[times.len() / 2]), peer);
}

/// Measures the claim and the publication of a new prompt of 8192 tokens in a full cache, where the
/// claim evicts as many tokens.
fn replacing<I: Index>(name: &str, mut cache: BlockCache<I>, salt: u64) {
    let (mut claims, mut publications) = (Vec::new(), Vec::new());
    for n in 0..200 {
        let (tokens, step) = (prompt(n + 2, 8192), StepId(u64::from(n) + 1));
        let seq = cache.open().unwrap();
        let hit = cache.attach(seq, &tokens, salt, u32::MAX, Lookup::default()).unwrap();
        let start = Instant::now();
        cache.claim(step, &[ClaimRow::new(seq, 8192 - hit.tokens)]).unwrap();
        claims.push(start.elapsed().as_secs_f64() * 1e6);
        cache.retire(step).unwrap();
        let start = Instant::now();
        cache.publish(seq, &tokens, 8192).unwrap();
        publications.push(start.elapsed().as_secs_f64() * 1e6);
        cache.close(seq).unwrap();
    }
    let block = cache.shape().block_size;
    for (what, times) in [("claim with eviction of", &mut claims), ("publish", &mut publications)] {
        let times = &mut times[50..];
        times.sort_by(f64::total_cmp);
        let salt = if salt == 0 { "" } else { ", salted" };
        let what = format!("{name}: {what} 8192 tokens, block {block}{salt}");
        line(&what, (times[0], times[times.len() / 2]), None);
    }
}

fn main() {
    println!(
        "{:<58} {:>9} {:>9}   a peer's least, and how many times ours",
        "microseconds", "least", "median"
    );
    matching();
    evicting();
    for (batch, minisgl, nano) in [(1, 75.0, 1.2), (64, 873.0, 29.0), (256, 3361.0, 121.0)] {
        let peers = [(NANO, nano), (MINISGL, minisgl)];
        decoding("paged", Paged::new(config(16, 1 << 20)).unwrap(), batch, &peers);
        decoding("radix", Radix::new(config(16, 1 << 20)).unwrap(), batch, &peers);
    }
    decoding("radix", Radix::new(config(1, 1 << 20)).unwrap(), 256, &[(MINISGL, 3988.0)]);
    decoding("paged", Paged::new(config(16, 1 << 23)).unwrap(), 4096, &[]);
    decoding("radix", Radix::new(config(16, 1 << 23)).unwrap(), 4096, &[]);
    for hit in [true, false] {
        let minisgl = Some((MINISGL, 415.0)).filter(|_| !hit);
        admitting("radix", Radix::new(config(16, 1 << 18)).unwrap(), hit, minisgl);
        admitting("radix", Radix::new(config(1, 1 << 18)).unwrap(), hit, minisgl);
        admitting("paged", Paged::new(config(16, 1 << 18)).unwrap(), hit, None);
    }
    for salt in [0, 5] {
        replacing("radix", Radix::new(config(16, 1 << 18)).unwrap(), salt);
        replacing("radix", Radix::new(config(1, 1 << 18)).unwrap(), salt);
        replacing("paged", Paged::new(config(16, 1 << 18)).unwrap(), salt);
    }
}

//! Benchmark of the host overhead of a step, without a device: `cargo bench -p kvasir-engine`.
//!
//! - *decode*: schedule, claim, plan and postprocess of a step in which every sequence decodes one
//!   token at context 1,024. With equal lengths most steps open no block and a few open one for
//!   every row. With spread lengths (`spread`) every step does its share of block allocation and
//!   prefix publishing.
//! - *admission*: the step that admits a prompt of 8,192 tokens, cold and with a prefix-cache hit
//!   of all but the last block.
//!
//! `-- radix/16 4096` selects one cache and one number of rows. The tables show medians, and the
//! minimum as the noise-free cost on a shared machine. Figures of other engines were measured
//! elsewhere, on two cores of a Xeon with AVX-512 and AMX at about 2.6 GHz. They are thread CPU
//! time of the host part of the step only.
#![allow(clippy::unwrap_used)]

use kvasir_engine::*;
use kvasir_exec::{OutputRow, Step};
use kvasir_kv::{Cache, Cells, Paged, Radix, Span, blocks::BlockConfig};
use std::{hint::black_box, time::Instant};

const CONTEXT: u32 = 1024;
const PROMPT: u32 = 8192;

fn cache(kind: &str, block: u32, tokens: u32) -> Box<dyn Cache> {
    let blocks = BlockConfig { block_size: block, blocks: tokens.div_ceil(block), ..BlockConfig::default() };
    match kind {
        "paged" => Box::new(Paged::new(blocks).unwrap()),
        "radix" => Box::new(Radix::new(blocks).unwrap()),
        "paged+dummy" => Box::new(Paged::new(BlockConfig { dummy: true, ..blocks }).unwrap()),
        _ => Box::new(Cells::new(tokens, 1 << 16, None).unwrap()),
    }
}

fn core(kind: &str, block: u32, tokens: u32, policy: Box<dyn Policy>) -> Core {
    let limits = Limits {
        max_num_seqs: 4096,
        max_num_batched_tokens: 1 << 20,
        max_model_len: 1 << 20,
        ..Limits::default()
    };
    Core::new(limits, Order::Fcfs, policy, cache(kind, block, tokens))
}

fn answer(step: &mut Step) {
    for (i, row) in step.batch.rows.iter().enumerate() {
        if row.samples() {
            step.output.tokens.push(10 + i as u32 % 100);
        }
        let count = u32::from(row.samples());
        step.output
            .rows
            .push(OutputRow { tokens: Span { start: step.output.tokens.len() as u32 - count, len: count } });
    }
}

/// Median microseconds of schedule and of postprocess, and the minimum of their sum. Prompt lengths
/// vary by less than `spread`.
fn decode(kind: &str, block: u32, rows: u32, policy: Box<dyn Policy>, spread: u32) -> (f64, f64, f64) {
    let steps = (800_000 / rows).clamp(40, 400);
    let mut core = core(kind, block, rows * (CONTEXT + steps + 128).next_multiple_of(block), policy);
    for i in 0..rows {
        // Prompts differ from the first token on, so that no prefix is shared.
        let prompt = (0..CONTEXT + i % spread).map(|t| i * 7919 + t).collect();
        let params = Params { max_tokens: steps + 32, eos: vec![2, 3], ..Params::default() };
        core.add(Request { tag: u64::from(i), prompt, params }, 0).unwrap();
    }
    let (mut schedules, mut settles) = (Vec::new(), Vec::new());
    while let Some((schedule, settle, decodes)) = timed(&mut core, rows) {
        if decodes {
            schedules.push(schedule);
            settles.push(settle);
        }
        if schedules.len() == steps as usize {
            break;
        }
    }
    let least = schedules.iter().zip(&settles).map(|(schedule, settle)| schedule + settle);
    let least = least.fold(f64::INFINITY, f64::min);
    (median(schedules), median(settles), least)
}

fn timed(core: &mut Core, rows: u32) -> Option<(f64, f64, bool)> {
    let begin = Instant::now();
    let mut step = core.schedule(0)?;
    let schedule = begin.elapsed().as_secs_f64() * 1e6;
    core.take_binds().for_each(drop);
    answer(&mut step);
    let decodes = step.batch.rows.len() == rows as usize && step.batch.tokens.len() == rows as usize;
    let begin = Instant::now();
    core.postprocess(black_box(&step), &Ok(()), 0);
    let settle = begin.elapsed().as_secs_f64() * 1e6;
    core.outbox().clear();
    core.recycle(step);
    Some((schedule, settle, decodes))
}

/// Median and minimum microseconds of the step that admits a long prompt, cold and with a
/// prefix-cache hit. The core is warm, so its memory is allocated; the cache is emptied before each
/// cold prompt.
fn admission(kind: &str, block: u32, policy: Box<dyn Policy>) -> [(f64, f64); 2] {
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    let mut core = core(kind, block, 4 * PROMPT, policy);
    for _ in 0..100 {
        core.cache_mut().prefix().unwrap().evict(u32::MAX).unwrap();
        for times in [&mut cold, &mut warm] {
            let params = Params { max_tokens: 1, ..Params::default() };
            core.add(Request { tag: 0, prompt: (0..PROMPT).collect(), params }, 0).unwrap();
            times.push(timed(&mut core, 0).unwrap().0);
        }
    }
    [cold, warm].map(|times| (median(times.clone()), times.into_iter().fold(f64::INFINITY, f64::min)))
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let prefill_first =
        || -> Box<dyn Policy> { Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)) };
    let chunked = || -> Box<dyn Policy> { Box::new(Chunked::new(1 << 20, Mixing::Off)) };
    let rectangular = || -> Box<dyn Policy> {
        let config = RectangularConfig {
            max_batch: 4096,
            max_batch_tkv: 1 << 40,
            interleave: false,
            ..Default::default()
        };
        Box::new(Rectangular::new(config))
    };
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |what: &[&str]| wanted.iter().all(|want| what.contains(&want.as_str()));
    println!(
        "decode step, us              rows  schedule  postprocess    sum  least  spread  least  peers, sum"
    );
    let peers = [
        (1, "Mini-SGLang 65, nano-vLLM 1.2, vLLM 12.7"),
        (64, "Mini-SGLang 972, nano-vLLM 29, vLLM 813"),
        (256, "Mini-SGLang 3988, nano-vLLM 121, vLLM 3251"),
    ];
    let kinds = [
        ("paged", 16, "prefill-first"),
        ("radix", 16, "chunked"),
        ("radix", 1, "chunked"),
        ("cells", 1, "chunked"),
        ("paged+dummy", 64, "rectangular"),
    ];
    for (kind, block, policy) in kinds {
        for rows in [1, 64, 256, 1024, 4096] {
            let cache = format!("{kind}/{block}");
            if !is_wanted(&[&cache, policy, &rows.to_string()]) {
                continue;
            }
            let made = || match policy {
                "prefill-first" => prefill_first(),
                "rectangular" => rectangular(),
                _ => chunked(),
            };
            let (schedule, settle, least) = decode(kind, block, rows, made(), 1);
            let spread = decode(kind, block, rows, made(), 64);
            let (name, spread, least_spread) = (policy, spread.0 + spread.1, spread.2);
            let peer = peers.iter().find(|peer| peer.0 == rows && kind != "cells").map_or("", |peer| peer.1);
            let cache = format!("{name} on {cache}");
            println!(
                "{cache:<26} {rows:>6} {schedule:>9.1} {settle:>12.1} {:>6.1} {least:>6.1} {spread:>7.1} {least_spread:>6.1}  {peer}",
                schedule + settle
            );
        }
    }
    println!("\nadmission of 8,192 tokens, us   cold  least    hit  least");
    for (kind, block) in [("paged", 16), ("radix", 16), ("radix", 1)] {
        let cache = format!("{kind}/{block}");
        if !is_wanted(&[&cache, "admission"]) {
            continue;
        }
        let [cold, warm] = match kind {
            "paged" => admission(kind, block, prefill_first()),
            _ => admission(kind, block, chunked()),
        };
        println!("{cache:<26} {:>9.1} {:>6.1} {:>6.1} {:>6.1}", cold.0, cold.1, warm.0, warm.1);
    }
}

//! Benchmark of the drafters without a model: `cargo bench -p kvasir-engine --bench drafters`.
//!
//! A request has a history of 100,000 tokens, and its output repeats parts of it. Per drafter: the
//! slowest of the steps that read the history in, and the time of a step after them, which adds one
//! token and proposes 16.
#![allow(clippy::unwrap_used)]

use kvasir_engine::*;
use kvasir_exec::OutputRow;
use kvasir_kv::{Cells, Span, Token};
use kvasir_testkit::Random;
use std::time::Instant;

const HISTORY: usize = 100_000;
const STEPS: usize = 2000;

/// Text of words that recur, as source code has them.
fn history() -> Vec<Token> {
    let mut random = Random::new(1);
    let words: Vec<Vec<Token>> = (0..2000)
        .map(|_| (0..random.between(1, 12)).map(|_| random.below(30_000) as Token).collect())
        .collect();
    let mut tokens = Vec::new();
    while tokens.len() < HISTORY {
        // Few words are frequent.
        let word = random.below(2000) * random.below(2000) / 2000;
        tokens.extend_from_slice(&words[word as usize]);
    }
    tokens.truncate(HISTORY);
    tokens
}

/// Times of the steps that read and of those that propose, and the number of drafts.
fn measure(mut drafter: impl Drafter, history: &[Token]) -> (Vec<f64>, Vec<f64>, usize) {
    let limits = Limits { max_num_batched_tokens: 1 << 20, max_model_len: 1 << 20, ..Limits::default() };
    let policy = Box::new(Chunked::new(1 << 20, Mixing::On { target: None }));
    let cache = Box::new(Cells::new(1 << 18, 64, None).unwrap());
    let mut core = Core::new(limits, Order::Fcfs, policy, cache);
    let params = Params { max_tokens: STEPS as u32 + 10, ignore_eos: true, ..Params::default() };
    let id = core.add(Request { tag: 0, prompt: history.to_vec(), params }, 0).unwrap();
    let (mut proposal, mut reading, mut times, mut drafted) =
        (Proposal::default(), Vec::new(), Vec::new(), 0);
    for at in 0..=STEPS {
        let mut step = core.schedule(0).unwrap();
        core.take_binds().for_each(drop);
        step.output.tokens.push(history[at / 400 * 7919 % (HISTORY - STEPS) + at % 400]);
        step.output.rows.push(OutputRow { tokens: Span::new(0, 1) });
        core.postprocess(&step, &Ok(()), 0);
        core.recycle(step);
        core.outbox().clear();
        let sequence = core.sequence(id).unwrap();
        proposal.clear();
        let started = Instant::now();
        drafter.begin_step();
        drafter.propose(sequence, &mut proposal);
        let took = started.elapsed().as_secs_f64();
        if drafted == 0 {
            reading.push(took)
        } else {
            times.push(took)
        }
        drafted += proposal.tokens.len();
    }
    (reading, times, drafted)
}

fn main() {
    let history = history();
    println!("{:<8} {:>12} {:>12} {:>12} {:>8}", "", "reading", "step, median", "step, 99 %", "drafts");
    let all = [
        ("ngram", measure(NgramDrafter::new(NGRAM, MOST_DRAFTS), &history)),
        ("suffix", measure(SuffixDrafter::new(MOST_DRAFTS), &history)),
    ];
    for (name, (reading, mut times, drafted)) in all {
        let slowest = reading.into_iter().fold(0.0, f64::max);
        times.sort_by(f64::total_cmp);
        let us = |share: usize| times[times.len() * share / 100] * 1e6;
        println!(
            "{name:<8} {:>9.1} ms {:>9.2} us {:>9.2} us {:>8.1}",
            slowest * 1e3,
            us(50),
            us(99),
            drafted as f64 / times.len() as f64
        );
    }
}

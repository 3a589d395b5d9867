//! Prompt log-probabilities equal those of the logits, however a prompt is chunked, shared or
//! preempted.
#![allow(clippy::unwrap_used)]

use kvasir::{BackendKind, LoadedModel, OpenedModel, Precision};
use kvasir_engine::{
    Chunked, Chunking, Core, Limits, Mixing, Order, Params, Policy, PrefillFirst, Request, Turn,
};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::{Radix, blocks::BlockConfig};
use kvasir_sample::{Sampling, log_probability};
use std::collections::HashMap;

fn model(backend: BackendKind) -> LoadedModel {
    let path = kvasir_testkit::paths::model("qwen3");
    OpenedModel::open(&path).unwrap().load(backend, Precision::F32, Some(1)).unwrap()
}

fn prompt(n: u32) -> Vec<u32> {
    (0..20 + n * 13).map(|i| (i * 31 + n * 7) % 500).collect()
}

/// Prompt log-probabilities by request tag, and the number of preemptions.
fn scores(
    model: &LoadedModel,
    policy: Box<dyn Policy>,
    blocks: u32,
    overlap: bool,
) -> (HashMap<u64, Vec<TokenLogprobs>>, u32) {
    let config = BlockConfig { block_size: 16, blocks, ..BlockConfig::default() };
    let limits = Limits { max_num_seqs: 8, max_num_batched_tokens: 64, ..Limits::default() };
    let core = Core::new(limits, Order::Fcfs, policy, Box::new(Radix::new(config).unwrap()));
    let mut engine = model.engine(core, overlap).unwrap();
    for tag in 0..8 {
        let sampling = Sampling { prompt_logprobs: Some(2), logprobs: Some(1), ..Sampling::default() };
        let params = Params { max_tokens: 24, ignore_eos: true, sampling, ..Params::default() };
        // Duplicate prompts: the second could hit the prefix cache, but must be computed for its
        // scores.
        engine.add_request(Request { tag, prompt: prompt(tag as u32 / 2), params }).unwrap();
    }
    let (mut all, mut preempted) = (HashMap::new(), 0);
    loop {
        let turn = engine.step().unwrap();
        let outbox = engine.core_mut().outbox();
        for (at, list) in outbox.scores.drain(..) {
            let tag = outbox.events[at as usize].tag;
            assert!(all.insert(tag, list).is_none(), "they come once");
        }
        preempted += outbox.ended.iter().map(|summary| summary.preemptions).sum::<u32>();
        outbox.clear();
        if turn == Turn::Idle {
            return (all, preempted);
        }
    }
}

#[test]
fn prompt_scores_equal_those_of_its_logits() {
    for backend in [BackendKind::Cpu, BackendKind::Plain] {
        let model = model(backend);
        let chunked = || Box::new(Chunked::new(9, Mixing::On { target: None }));
        let (whole, _) = scores(&model, chunked(), 256, true);
        for (tag, list) in &whole {
            let prompt = prompt(*tag as u32 / 2);
            assert_eq!(list.len(), prompt.len() - 1);
            let logits = model.logits(&prompt, true).unwrap();
            for ((logits, next), one) in logits.iter().zip(&prompt[1..]).zip(list) {
                assert!((one.chosen - log_probability(logits, *next)).abs() < 1e-4);
                assert!(one.top.len() == 2 && one.top[0].1 >= one.top[1].1);
            }
        }
        assert_eq!(whole.len(), 8);
        let first = || Box::new(PrefillFirst::new(Chunking::On { cap: Some(7) }, 0.0));
        let (again, preempted) = scores(&model, first(), 20, true);
        assert!(preempted > 0, "a pool this small must preempt somebody");
        assert_eq!(again, whole);
        assert_eq!(scores(&model, first(), 256, false).0, whole);
    }
}

//! Context shift on real weights: an answer that fills its context continues as the answer to the tokens
//! that are left, the same with every cache, backend loop and drafter.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir::{
    BackendKind, CacheKind, DraftWidth, Kvasir, Model, OpenedModel, Params, Precision, Sampling, Speculation,
    Token,
};
use kvasir_engine::{Chunked, Core, Limits, Mixing, Order};
use kvasir_kv::{CacheConfig, build};
use kvasir_testkit::paths;
use std::path::PathBuf;

const CONTEXT: u32 = 48;

fn case() -> PathBuf {
    paths::model("eagle3_qwen3")
}

fn engine(backend: BackendKind, kind: CacheKind, overlap: bool, spec: Option<&str>) -> Kvasir {
    let opened = OpenedModel::open(&case()).unwrap();
    let opened = match spec {
        None => opened,
        Some(spec) => {
            let mut spec = spec.parse::<Speculation>().unwrap();
            spec.parameters.width = DraftWidth::Fixed;
            opened.speculate(&spec).unwrap()
        }
    };
    let model = Model::new(opened.load(backend, Precision::F32, Some(1)).unwrap()).unwrap();
    let block_size = if kind.is_block_based() { 4 } else { 1 };
    let cache = build(kind, &CacheConfig { block_size, ..CacheConfig::new(256) }).unwrap();
    let max_num_seqs = if kind.holds_one_sequence() { 1 } else { 4 };
    let limits =
        Limits { max_num_seqs, max_num_batched_tokens: 32, max_model_len: CONTEXT, ..Limits::default() };
    let policy = Chunked::new(24, Mixing::On { target: None });
    let core = Core::new(limits, Order::Fcfs, Box::new(policy), cache);
    Kvasir::with_core(model, core, overlap).unwrap()
}

fn prompt() -> Vec<Token> {
    (0..20).map(|i| 3 + i * 5 % 23).collect()
}

#[test]
fn an_answer_continues_as_that_to_the_tokens_that_are_left() {
    for backend in [BackendKind::Plain, BackendKind::Cpu] {
        for keep in [0, 6, u32::MAX] {
            let mut kvasir = engine(backend.clone(), CacheKind::Radix, false, None);
            let greedy = |max_tokens, context_shift| Params {
                max_tokens,
                context_shift,
                ignore_eos: true,
                sampling: Sampling { temperature: 0.0, ..Sampling::default() },
                ..Params::default()
            };
            let answer = kvasir.generate(prompt().as_slice(), &greedy(90, Some(keep))).unwrap().ids;
            let (mut tokens, mut expected) = (prompt(), Vec::new());
            let keep = keep.min(20) as usize;
            while expected.len() < 90 {
                let room = (CONTEXT - tokens.len() as u32).min(90 - expected.len() as u32);
                let more = kvasir.generate(tokens.as_slice(), &greedy(room, None)).unwrap().ids;
                tokens.extend(&more);
                expected.extend(more);
                let discard = (tokens.len() - 1 - keep) / 2;
                tokens.drain(keep..keep + discard);
            }
            assert_eq!(answer, expected, "{backend:?}, {keep} kept");
        }
    }
}

#[test]
fn a_shifted_answer_is_the_same_in_every_cache_and_with_drafts() {
    let eagle = format!("eagle3:{},depth=3", case().join("draft").display());
    let sampling = Sampling {
        temperature: 0.9,
        seed: 5,
        repetition_penalty: 1.1,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        ..Sampling::default()
    };
    let params = |keep| Params {
        max_tokens: 100,
        min_tokens: 60,
        eos: vec![7, 11],
        context_shift: Some(keep),
        sampling,
        ..Params::default()
    };
    for keep in [0, 9, u32::MAX] {
        let mut expected = None;
        for kind in CacheKind::ALL.iter().copied() {
            let drafts_trees = matches!(kind, CacheKind::Cells | CacheKind::Tree | CacheKind::Radix);
            let eagle = Some(eagle.as_str()).filter(|_| drafts_trees);
            for (overlap, spec) in
                [(false, None), (true, None), (false, Some("suffix")), (false, Some("ngram")), (false, eagle)]
            {
                let mut kvasir = engine(BackendKind::Cpu, kind, overlap, spec);
                let answer = kvasir.generate(prompt().as_slice(), &params(keep)).unwrap().ids;
                assert!(answer.len() > 60);
                assert_eq!(
                    *expected.get_or_insert(answer.clone()),
                    answer,
                    "{kind} {overlap} {spec:?} {keep}"
                );
            }
        }
    }
}

//! Context shift on the toy device: an answer that fills its context continues as a request for the
//! tokens that are left, whatever cache, policy, drafter and overlap it runs with.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::{Cache, CacheConfig, CacheKind, Token, build};
use kvasir_sim::Toy;
use kvasir_testkit::{
    Random,
    complete::{complete, complete_all},
    engines::{self, CACHE_KINDS, limits, policy},
};

fn cache(kind: CacheKind, block_size: u32, slots: u32) -> Box<dyn Cache> {
    build(kind, &CacheConfig { block_size, sharing: true, ..CacheConfig::new(slots) }).unwrap()
}

fn request(prompt: &[Token], max_tokens: u32, keep: Option<u32>) -> Request {
    let params = Params { max_tokens, ignore_eos: true, context_shift: keep, ..Params::default() };
    Request { tag: 1, prompt: prompt.to_vec(), params }
}

/// The expected answer, and the tokens dropped.
fn reference(prompt: &[Token], max_tokens: u32, keep: u32, context: u32) -> (Vec<Token>, u32) {
    Toy::shifting(prompt, max_tokens, true, keep, context)
}

fn tokens(random: &mut Random, len: u32) -> Vec<Token> {
    (0..len).map(|_| 100 + random.below(9) as Token).collect()
}

#[test]
fn an_answer_continues_with_the_tokens_that_are_left() {
    let mut shifted = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let kind = CACHE_KINDS[seed as usize % 5];
        let context = random.between(20, 90);
        let (limits, policy) = (limits(&mut random, context), policy(&mut random));
        // Sometimes the pool, and not the model, ends the context.
        let slots = random.pick(&[512, 64]);
        let core = Core::new(limits, Order::Fcfs, policy, engines::cache(&mut random, kind, slots));
        let context = context.min(core.cache().shape().capacity);
        let engine = Engine::new(core, Toy::new(), || 0).overlap(random.chance(50));
        let mut engine = match random.below(3) {
            0 => engine.draft(Box::new(SuffixDrafter::new(4))).unwrap(),
            1 => engine.draft(Box::new(NgramDrafter::new(2, 3))).unwrap(),
            _ => engine,
        };
        let len = random.between(1, context - 1);
        let prompt = tokens(&mut random, len);
        let keep = random.pick(&[0, 1, 7, u32::MAX]);
        let max_tokens = random.between(0, 200);
        let done = complete(&mut engine, request(&prompt, max_tokens, Some(keep)));
        assert_eq!(engine.executor().violations().first(), None, "seed {seed}");
        engine.core().check_invariants().unwrap();
        let (answer, dropped) = reference(&prompt, max_tokens, keep, context);
        let what = format!("seed {seed}: {kind}, {len} of {context}, {keep} kept");
        assert_eq!((done.tokens, done.summary.dropped), (answer, dropped), "{what}");
        let finish = if done.summary.outputs == max_tokens { Finish::MaxTokens } else { Finish::ModelLength };
        assert_eq!((done.summary.finish, done.summary.preemptions), (finish, 0), "{what}");
        let usage = engine.core().cache().usage();
        assert_eq!((usage.available(), usage.held), (engine.core().cache().shape().capacity, 0), "{what}");
        shifted += u32::from(dropped > 0);
    }
    assert!(shifted > 100, "{shifted}");
}

#[test]
fn requests_that_shift_disturb_no_others() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let kind = [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix][seed as usize % 3];
        let block = if kind.is_block_based() { 4 } else { 1 };
        let limits = Limits { max_num_batched_tokens: 32, max_model_len: 48, ..Limits::default() };
        let policy = Box::new(Chunked::new(12, Mixing::On { target: None }));
        let order = random.pick(&[Order::Fcfs, Order::Priority, Order::Fair]);
        // A tight pool preempts.
        let core = Core::new(limits, order, policy, cache(kind, block, random.pick(&[96, 1024])));
        let mut engine = Engine::new(core, Toy::new(), || 0).overlap(seed % 2 == 0);
        let requests: Vec<Request> = (0..5)
            .map(|tag| {
                let len = random.between(1, 30);
                let keep = random.pick(&[None, Some(3), Some(u32::MAX)]);
                let untagged = request(&tokens(&mut random, len), random.between(1, 120), keep);
                Request { tag, ..untagged }
            })
            .collect();
        let done = complete_all(&mut engine, requests.clone());
        engine.core().check_invariants().unwrap();
        assert_eq!(engine.executor().violations().first(), None, "seed {seed}");
        for (request, done) in requests.iter().zip(&done) {
            let Params { max_tokens, context_shift, .. } = request.params;
            let expected = match context_shift {
                Some(keep) => reference(&request.prompt, max_tokens, keep, 48).0,
                None => Toy::alone(&request.prompt, max_tokens.min(48 - request.prompt.len() as u32), true),
            };
            let done = done.as_ref().unwrap();
            assert_eq!(done.tokens, expected, "seed {seed}: {kind} {order:?}");
        }
    }
}

#[test]
fn a_stop_sequence_may_begin_before_a_shift() {
    let prompt = [100, 101, 102];
    let (answer, _) = reference(&prompt, 60, 3, 24);
    for at in 19..23 {
        let policy = Box::new(Chunked::new(12, Mixing::Off));
        let limits = Limits { max_model_len: 24, ..Limits::default() };
        let core = Core::new(limits, Order::Fcfs, policy, cache(CacheKind::Paged, 4, 64));
        let mut engine = Engine::new(core, Toy::new(), || 0);
        let mut with_stop = request(&prompt, 60, Some(3));
        with_stop.params.stop_sequences = vec![answer[at..at + 3].to_vec()];
        let done = complete(&mut engine, with_stop);
        let end = (0..).find(|i| answer[..*i].ends_with(&answer[at..at + 3])).unwrap();
        assert_eq!(done.tokens, answer[..end]);
        assert_eq!(done.summary.finish, Finish::StopSequence { index: 0 });
    }
}

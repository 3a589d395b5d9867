//! Batch invariance of the CPU backend: tokens and logits are bit-identical whatever the batch
//! composition.
//!
//! Compared to each request alone: batched, chunked prefill, after a prefix cache hit, after
//! preemption, forked, on every cache under every policy, on one thread or two. This is the
//! numerics contract.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{Arrivals, Coverage, Outputs, RecordingExecutor, policy, run_each};
use kvasir::AnyExecutor;
use kvasir_cpu::{CpuExecutor, CpuModel, FrozenPool, KvType, Limits as PoolLimits, Precision};
use kvasir_engine::{Core, Engine, Limits, Order, Params, Request, Turn};
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, RowKind, SequenceSpec, Step};
use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, Contiguous, PoolId, SharedPrefix, Span, StepId, Token, build,
};
use kvasir_sample::Sampling;
use kvasir_testkit::{checkpoints, steps::prompt};
use std::sync::Arc;

fn load(case: &str, arithmetic: Precision, threads: usize) -> Arc<CpuModel> {
    match arithmetic {
        Precision::F32 => checkpoints::exact(case, threads),
        Precision::Bf16x2 => checkpoints::close(case, threads),
        Precision::Auto => checkpoints::narrow(case, threads),
    }
}

/// Requests with common prefixes, various temperatures, and lengths across the RoPE scaling
/// threshold.
fn requests(model: &CpuModel) -> Vec<Request> {
    // Longer than one KV chunk of the attention kernel.
    common::requests(model.program(), &prompt(70, 1), [9, 14, 12, 9, 11, 6])
}

/// A frozen prefix: the first tokens of a request, prefilled alone.
struct Frozen {
    rows: SharedPrefix,
    pool: FrozenPool,
}

impl Frozen {
    fn new(model: &Arc<CpuModel>, tokens: &[Token], final_len: u32, kv: KvType) -> Self {
        let count = tokens.len() as u32;
        let room = PoolLimits { slots: count, tokens: count, rows: 1, kv, ring: None };
        let mut executor = CpuExecutor::new(Arc::clone(model), room).unwrap();
        let mut cache = Contiguous::new(count);
        let seq = cache.open().unwrap();
        executor.bind(PoolRow(0), SequenceSpec { final_len, ..SequenceSpec::default() });
        cache.claim(StepId(1), &[ClaimRow::new(seq, count)]).unwrap();
        let mut step = Step::default();
        cache.plan(StepId(1), &mut step.plan).unwrap();
        let row = BatchRow {
            seq,
            kind: RowKind::Prefill,
            tokens: Span::new(0, tokens.len()),
            context_len: count,
            sample_from: count,
            ..BatchRow::default()
        };
        step.batch = Batch { step: StepId(1), tokens: tokens.to_vec(), rows: vec![row], ..Batch::default() };
        executor.execute(&mut step, &[]).unwrap();
        cache.retire(StepId(1)).unwrap();
        Self { rows: cache.freeze(PoolId(1)).unwrap(), pool: executor.into_pool() }
    }
}

/// One configuration under test.
#[derive(Debug)]
struct Setup {
    cache: CacheKind,
    policy: &'static str,
    slots: u32,
    overlap: bool,
    kv: KvType,
}

impl Setup {
    fn engine(
        &self,
        model: &Arc<CpuModel>,
        prefix: Option<&Frozen>,
    ) -> Engine<RecordingExecutor<AnyExecutor>> {
        let rectangular = self.policy == "rectangular";
        let config = CacheConfig {
            block_size: 8,
            max_sequences: 16,
            sharing: true,
            dummy: rectangular,
            ..CacheConfig::new(self.slots)
        };
        let limits = Limits {
            max_num_seqs: 5,
            max_num_batched_tokens: if rectangular || self.policy == "whole" { 400 } else { 24 },
            max_model_len: 200,
            ..Limits::default()
        };
        let own = build(self.cache, &config).unwrap();
        let cache = match prefix {
            Some(prefix) => Box::new(prefix.rows.under(own).unwrap()),
            None => own,
        };
        let room =
            PoolLimits { slots: cache.shape().capacity + 8, tokens: 400, rows: 16, kv: self.kv, ring: None };
        let mut inner = CpuExecutor::new(Arc::clone(model), room).unwrap();
        if let Some(prefix) = prefix {
            inner.attach(PoolId(1), prefix.pool.clone()).unwrap();
        }
        let inner = AnyExecutor::Cpu(Box::new(inner));
        let inner = if self.overlap { inner.on_thread().unwrap() } else { inner };
        let executor = RecordingExecutor::new(inner, model.program());
        let core = Core::new(limits, Order::Fcfs, policy(self.policy), cache);
        Engine::new(core, executor, || 0).overlap(self.overlap)
    }

    /// Runs requests that arrive one by one, each with `n` siblings; returns outputs by tag.
    fn run(&self, model: &Arc<CpuModel>, requests: &[Request], n: u32, coverage: &mut Coverage) -> Outputs {
        self.run_on(model, None, requests, n, coverage)
    }

    /// Runs requests behind a frozen prefix, if given.
    fn run_on(
        &self,
        model: &Arc<CpuModel>,
        prefix: Option<&Frozen>,
        requests: &[Request],
        n: u32,
        coverage: &mut Coverage,
    ) -> Outputs {
        let arrivals = Arrivals { requests, siblings: n, interval: 3, max_turns: 2000, context: self };
        arrivals.run(&mut self.engine(model, prefix), coverage, |_, _, _| {})
    }
}

/// Reference outputs: each request and sibling alone, whole prompt, contiguous cache, one thread.
fn run_alone(case: &str, arithmetic: Precision, kv: Option<KvType>, n: u64) -> Outputs {
    let model = load(case, arithmetic, 1);
    let kv = kv.unwrap_or(model.natural_kv());
    let setup = Setup { cache: CacheKind::Contiguous, policy: "whole", slots: 200, overlap: false, kv };
    let requests = requests(&model);
    let outputs = run_each(&requests, n, |one| setup.run(&model, one, 1, &mut Coverage::default()));
    for request in &requests {
        let (tokens, logits) = &outputs[&request.tag];
        assert_eq!((tokens.len(), logits.len()), (request.params.max_tokens as usize, tokens.len()));
    }
    outputs
}

/// Compares tokens and logits; no output has logits of further positions.
fn compare(context: &str, expected: &Outputs, outputs: &Outputs) {
    common::compare(context, expected, outputs);
    assert!(outputs == expected, "{context}: logits of further positions");
}

const POLICIES: [&str; 5] = ["whole", "prefill-first", "chunked", "mixed", "rectangular"];

/// Every cache under every policy, with and without overlap; with `tight`, in a pool too small for
/// all.
fn matrix(case: &str, arithmetic: Precision, kv: Option<KvType>, tight: bool) {
    let wanted = run_alone(case, arithmetic, kv, 1);
    let models = [load(case, arithmetic, 1), load(case, arithmetic, 2)];
    let requests = requests(&models[0]);
    let mut coverage = Coverage::default();
    let mut runs = 0;
    for cache in CacheKind::ALL {
        for policy in POLICIES {
            let blocks = cache.is_block_based();
            if policy == "rectangular" && !blocks {
                continue; // its steps are padded with blocks
            }
            for overlap in [false, true] {
                let model = &models[runs / 2 % 2];
                let slots = if tight { 104 } else { 800 };
                let kv = kv.unwrap_or(model.natural_kv());
                let setup = Setup { cache: *cache, policy, slots, overlap, kv };
                let about = format!("{case}, {cache}, {policy}, {kv}, {slots} slots, overlap {overlap}");
                compare(&about, &wanted, &setup.run(model, &requests, 1, &mut coverage));
                runs += 1;
            }
        }
    }
    assert!(coverage.hits >= 8 && coverage.batched > 50, "{case}: {coverage:?}");
    assert!(!tight || coverage.preemptions >= 5, "{case}: {coverage:?}");
}

#[test]
fn forked_off_a_shared_prefix() {
    for (case, arithmetic) in [("qwen3_yarn_swa", Precision::F32), ("gpt_oss", Precision::Auto)] {
        let models = [load(case, arithmetic, 1), load(case, arithmetic, 2)];
        let kv = models[0].natural_kv();
        // Requests with the common prefix, of which a part that is not a whole number of blocks is
        // frozen.
        let frozen = prompt(67, 1);
        let mut requests = requests(&models[0]);
        requests.retain(|request| request.prompt.starts_with(&frozen));
        let whole = Setup { cache: CacheKind::Contiguous, policy: "whole", slots: 200, overlap: false, kv };
        let wanted = run_each(&requests, 1, |one| whole.run(&models[0], one, 1, &mut Coverage::default()));
        let prefix = Frozen::new(&models[0], &frozen, 60, kv);
        let mut coverage = Coverage::default();
        for (runs, cache) in CacheKind::ALL.iter().enumerate() {
            for policy in ["whole", "prefill-first", "chunked", "mixed"] {
                let blocks = cache.is_block_based();
                let setup = Setup {
                    cache: *cache,
                    policy,
                    slots: if blocks { 40 } else { 34 },
                    overlap: runs % 2 == 0,
                    kv,
                };
                let got = setup.run_on(&models[runs % 2], Some(&prefix), &requests, 1, &mut coverage);
                compare(&format!("{case}, {cache}, {policy}, behind a prefix"), &wanted, &got);
            }
        }
        assert!(coverage.preemptions > 0 && coverage.batched > 10, "{case}: {coverage:?}");
    }
}

#[test]
fn windows_and_yarn() {
    matrix("qwen3_yarn_swa", Precision::F32, None, false);
    matrix("qwen3_yarn_swa", Precision::Auto, Some(KvType::Q8_0), true);
}

#[test]
fn layers_that_share_their_keys() {
    matrix("gemma4_ple", Precision::Auto, None, true);
}

#[test]
fn sinks_and_experts() {
    matrix("gpt_oss", Precision::Auto, None, true);
}

#[test]
fn latent_attention_that_selects_its_keys() {
    matrix("deepseek_v32", Precision::Auto, None, true);
}

#[test]
fn compressed_entries_beside_a_window() {
    matrix("deepseek_v4", Precision::Auto, None, true);
}

#[test]
fn angles_that_follow_the_length() {
    matrix("phi3_longrope", Precision::F32, Some(KvType::F16), true);
}

#[test]
fn experts_in_fp8() {
    matrix("deepseek_v3_fp8", Precision::F32, None, true);
}

#[test]
fn experts_in_bf16_and_in_floats_of_four_bits() {
    matrix("deepseek_v3_bf16", Precision::Bf16x2, None, true);
    matrix("gpt_oss_mxfp4", Precision::Bf16x2, Some(KvType::F16), false);
}

#[test]
fn siblings_share_their_prompt() {
    let wanted = run_alone("gemma3", Precision::Auto, None, 3);
    let model = load("gemma3", Precision::Auto, 2);
    for cache in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix] {
        let mut coverage = Coverage::default();
        let setup = Setup { cache, policy: "mixed", slots: 800, overlap: true, kv: model.natural_kv() };
        let got = setup.run(&model, &requests(&model), 3, &mut coverage);
        compare(&cache.to_string(), &wanted, &got);
        assert!(coverage.hits > 6, "{cache}: {coverage:?}");
    }
}

/// Hidden state of a prompt, optionally preempted after its first chunk.
fn state(setup: &Setup, model: &Arc<CpuModel>, is_preempted: bool) -> Vec<u32> {
    let mut engine = setup.engine(model, None);
    let sampling = Sampling { hidden: true, ..Sampling::default() };
    let params = Params { max_tokens: 1, sampling, ..Params::default() };
    let id = engine.add_request(Request { tag: 1, prompt: prompt(60, 9), params }).unwrap();
    let mut state = Vec::new();
    for turn in 0..100 {
        let done = engine.step().unwrap();
        if turn == 1 && is_preempted {
            assert!(engine.core_mut().preempt(id), "it is in the middle of its prompt");
        }
        let outbox = engine.core_mut().outbox();
        state.extend(outbox.hidden.iter().flat_map(|(_, state)| state.iter().map(|x| x.to_bits())));
        let preemptions: Vec<u32> = outbox.ended.iter().map(|ended| ended.preemptions).collect();
        outbox.clear();
        assert!(preemptions.iter().all(|count| *count == u32::from(is_preempted)));
        if done == Turn::Idle {
            break;
        }
    }
    assert_eq!(state.len(), model.program().hidden);
    state
}

#[test]
fn an_embedding_is_the_same_after_a_preemption() {
    let model = load("qwen3_yarn_swa", Precision::Auto, 2);
    for cache in CacheKind::ALL {
        let setup =
            Setup { cache: *cache, policy: "chunked", slots: 200, overlap: true, kv: model.natural_kv() };
        assert_eq!(state(&setup, &model, true), state(&setup, &model, false), "{cache}");
    }
}

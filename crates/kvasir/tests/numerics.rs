//! Batch invariance of the CPU backend: tokens and logits are bit-identical whatever the batch
//! composition.
//!
//! Compared to each request alone: batched, chunked prefill, after a prefix cache hit, after
//! preemption, forked, on every cache under every policy, on one thread or two. This is the
//! numerics contract.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod recorded_logits;

use kvasir::{AnyExecutor, AnyPending};
use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits as PoolLimits, Pool, Precision};
use kvasir_engine::{
    Chunked, Chunking, Core, Engine, EventOutput, Finish, Limits, Mixing, Order, Params, Policy,
    PrefillFirst, Rectangular, RectangularConfig, Request, RequestId, Turn,
};
use kvasir_exec::{
    Abilities, Batch, BatchRow, Executor, PoolRow, Refused, RowKind, SequenceSpec, Step, StepError,
};
use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, Contiguous, PoolId, SharedPrefix, Span, StepId, Token, build,
};
use kvasir_sample::Sampling;
use kvasir_testkit::checkpoints;
use recorded_logits::RecordedLogits;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Wraps an executor and records the logits of each position of each request.
struct RecordingExecutor {
    inner: AnyExecutor,
    logits: RecordedLogits,
    /// Requests that shared a step with others.
    batched: BTreeSet<u64>,
}

impl Executor for RecordingExecutor {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, mut step: Box<Step>) -> Result<AnyPending, Refused> {
        step.batch.logits = true;
        self.inner.submit(step)
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
        let (step, result) = self.inner.wait(pending);
        self.logits.record(&step);
        if step.batch.rows.len() > 1 {
            self.batched.extend(step.batch.rows.iter().map(|row| row.request));
        }
        (step, result)
    }
}

/// Output of a request: tokens, and logits of each sampled position.
type RequestOutput = (Vec<Token>, BTreeMap<u32, Vec<u32>>);

/// Coverage of a run, so that a vacuous test fails.
#[derive(Debug, Default)]
struct Coverage {
    hits: u32,
    preemptions: u32,
    batched: usize,
}

fn load(case: &str, arithmetic: Precision, threads: usize) -> Arc<CpuModel> {
    match arithmetic {
        Precision::F32 => checkpoints::exact(case, threads),
        Precision::Bf16x2 => checkpoints::close(case, threads),
        Precision::Auto => checkpoints::narrow(case, threads),
    }
}

fn tokens(n: usize, salt: usize) -> Vec<Token> {
    (0..n).map(|i| ((i * 37 + salt * 101 + 11) % 500) as Token).collect()
}

/// Requests with common prefixes, various temperatures, and lengths across the RoPE scaling
/// threshold.
fn requests(model: &CpuModel) -> Vec<Request> {
    // Longer than one KV chunk of the attention kernel.
    let shared = tokens(70, 1);
    let after_shared = |tail: usize, salt: usize| [&shared[..], &tokens(tail, salt)].concat();
    let all = [
        (after_shared(5, 2), 9, 0.0),
        (tokens(23, 3), 14, 0.9),
        (after_shared(9, 4), 12, 0.0),
        (after_shared(5, 2), 9, 0.8),
        (tokens(3, 5), 11, 0.0),
        (after_shared(1, 6), 6, 1.2),
    ];
    let request = |(tag, (prompt, max_tokens, temperature)): (usize, (Vec<Token>, u32, f32))| {
        let sampling = Sampling { temperature, seed: tag as u64 + 7, ..Sampling::default() };
        let salt = model.program().prefix_salt(prompt.len() as u32 + max_tokens);
        let params = Params { max_tokens, ignore_eos: true, sampling, salt, ..Params::default() };
        Request { tag: tag as u64 * 10, prompt, params }
    };
    all.into_iter().enumerate().map(request).collect()
}

/// A frozen prefix: the first tokens of a request, prefilled alone.
struct Frozen {
    rows: SharedPrefix,
    pool: Arc<Pool>,
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
struct Setup {
    cache: CacheKind,
    policy: &'static str,
    slots: u32,
    overlap: bool,
    kv: KvType,
}

impl Setup {
    fn policy(&self) -> Box<dyn Policy> {
        match self.policy {
            "whole" => Box::new(PrefillFirst::new(Chunking::Off, 0.0)),
            "prefill-first" => Box::new(PrefillFirst::new(Chunking::On { cap: Some(17) }, 0.0)),
            "chunked" => Box::new(Chunked::new(13, Mixing::Off)),
            "mixed" => Box::new(Chunked::new(19, Mixing::On { target: None })),
            "rectangular" => Box::new(Rectangular::new(RectangularConfig {
                chunk_size: 16,
                max_batch: 4,
                ..RectangularConfig::default()
            })),
            other => panic!("no policy {other}"),
        }
    }

    fn engine(&self, model: &Arc<CpuModel>, prefix: Option<&Frozen>) -> Engine<RecordingExecutor> {
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
            inner.attach(PoolId(1), Arc::clone(&prefix.pool)).unwrap();
        }
        let inner = AnyExecutor::Cpu(Box::new(inner));
        let inner = if self.overlap { inner.on_thread().unwrap() } else { inner };
        let logits = RecordedLogits::new(model.program().vocab);
        let executor = RecordingExecutor { inner, logits, batched: BTreeSet::new() };
        let core = Core::new(limits, Order::Fcfs, self.policy(), cache);
        Engine::new(core, executor, || 0).overlap(self.overlap)
    }

    /// Runs requests that arrive one by one, each with `n` siblings; returns outputs by tag.
    fn run(
        &self,
        model: &Arc<CpuModel>,
        requests: &[Request],
        n: u32,
        coverage: &mut Coverage,
    ) -> BTreeMap<u64, RequestOutput> {
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
    ) -> BTreeMap<u64, RequestOutput> {
        let mut engine = self.engine(model, prefix);
        let mut answered: BTreeMap<u64, RequestOutput> = BTreeMap::new();
        let mut ids: BTreeMap<u64, RequestId> = BTreeMap::new();
        let mut waiting = requests.iter();
        for turn in 0.. {
            if turn % 3 == 0
                && let Some(request) = waiting.next()
            {
                let added = engine.core_mut().add_siblings(request.clone(), n, 0).unwrap();
                ids.extend((request.tag..).zip(added));
            }
            let done = engine.step().unwrap();
            let outbox = engine.core_mut().outbox();
            for EventOutput { event, tokens, .. } in outbox.iter() {
                answered.entry(event.tag).or_default().0.extend_from_slice(tokens);
            }
            for ended in outbox.ended.drain(..) {
                assert_eq!(ended.finish, Finish::MaxTokens);
                coverage.hits += u32::from(ended.cached > 0);
                coverage.preemptions += ended.preemptions;
            }
            outbox.clear();
            if done == Turn::Idle && waiting.len() == 0 {
                break;
            }
            assert!(turn < 2000, "requests did not finish");
        }
        coverage.batched += engine.executor().batched.len();
        for (tag, (_, logits)) in &mut answered {
            *logits = engine.executor().logits.of(ids[tag].0);
        }
        answered
    }
}

/// Reference outputs: each request and sibling alone, whole prompt, contiguous cache, one thread.
fn run_alone(case: &str, arithmetic: Precision, kv: Option<KvType>, n: u64) -> BTreeMap<u64, RequestOutput> {
    let model = load(case, arithmetic, 1);
    let kv = kv.unwrap_or(model.natural_kv());
    let setup = Setup { cache: CacheKind::Contiguous, policy: "whole", slots: 200, overlap: false, kv };
    let mut answered = BTreeMap::new();
    for request in requests(&model) {
        for i in 0..n {
            let mut one = request.clone();
            one.tag += i;
            one.params.sampling.seed += i;
            answered.append(&mut setup.run(&model, &[one], 1, &mut Coverage::default()));
        }
        let (tokens, logits) = &answered[&request.tag];
        assert_eq!((tokens.len(), logits.len()), (request.params.max_tokens as usize, tokens.len()));
    }
    answered
}

fn compare(about: &str, wanted: &BTreeMap<u64, RequestOutput>, got: &BTreeMap<u64, RequestOutput>) {
    assert!(got.keys().eq(wanted.keys()), "{about}");
    for (tag, (tokens, logits)) in got {
        assert_eq!(tokens, &wanted[tag].0, "{about}: tokens of request {tag}");
        assert!(logits == &wanted[tag].1, "{about}: logits of request {tag}");
    }
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
        let frozen = tokens(67, 1);
        let mut requests = requests(&models[0]);
        requests.retain(|request| request.prompt.starts_with(&frozen));
        let whole = Setup { cache: CacheKind::Contiguous, policy: "whole", slots: 200, overlap: false, kv };
        let mut wanted = BTreeMap::new();
        for request in &requests {
            let alone = std::slice::from_ref(request);
            wanted.append(&mut whole.run(&models[0], alone, 1, &mut Coverage::default()));
        }
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
    let id = engine.add_request(Request { tag: 1, prompt: tokens(60, 9), params }).unwrap();
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

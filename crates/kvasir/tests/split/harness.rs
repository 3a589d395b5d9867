//! Runs a program on one process or as ranks, and compares their logits.

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Precision, ThreadPool, WeightSource};
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, SequenceSpec, Step};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, CacheConfig, CacheKind, ClaimRow, Lowering, Span, StateConfig, StepId, Token, build};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_program::{Model, Program};
use kvasir_testkit::Random;
use kvasir_testkit::ranks::ThreadRank;
use kvasir_testkit::steps::{RowInput, row_input, step};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const SLOTS: u32 = 128;
const TOKENS: usize = 50;
/// The state pool of programs with recurrent layers.
const STATES: StateConfig = StateConfig { live: 1, checkpoints: 2, tail_rows: DRAFTS, interval: 16 };
/// Maximum draft tokens per step.
const DRAFTS: u32 = 4;

/// The pool of recurrent states that a program needs.
fn states(program: &Program) -> Option<StateConfig> {
    program.is_recurrent().then_some(STATES)
}

pub(crate) enum Backend {
    Cpu(Box<CpuExecutor>),
    Plain(Box<PlainExecutor>),
}

impl Backend {
    pub(crate) fn among(self, rank: ThreadRank) -> Self {
        match self {
            Self::Cpu(cpu) => Self::Cpu(Box::new(cpu.among(rank).unwrap())),
            Self::Plain(plain) => Self::Plain(Box::new(plain.among(rank).unwrap())),
        }
    }

    fn program(&self) -> &Program {
        match self {
            Self::Cpu(cpu) => cpu.program(),
            Self::Plain(plain) => plain.program(),
        }
    }

    fn bind(&mut self, spec: SequenceSpec) {
        match self {
            Self::Cpu(cpu) => cpu.bind(PoolRow(0), spec),
            Self::Plain(plain) => plain.bind(PoolRow(0), spec),
        }
    }

    fn run(&mut self, mut step: Step, hidden: &[f32]) -> Vec<f32> {
        match self {
            Self::Cpu(cpu) => {
                cpu.execute(&mut step, hidden).unwrap();
                step.output.logits
            }
            Self::Plain(plain) => {
                step.lower(&plain.abilities(), &mut Lowering::default()).unwrap();
                let hidden = plain.program().takes_hidden().then_some(hidden);
                plain.pass(&step, hidden, &[]).unwrap().logits
            }
        }
    }

    /// Logits of the later tokens: a prefill step that samples nothing, one that does, then single
    /// tokens. A multi-token-prediction layer gets the same hidden states on every rank.
    pub(crate) fn logits(mut self) -> Vec<f32> {
        let program = self.program();
        let (vocab, hidden_width) = (program.vocab, if program.takes_hidden() { program.hidden } else { 0 });
        let mut cache = self.cache();
        let seq = cache.open().unwrap();
        let tokens: Vec<Token> = (0..TOKENS).map(|i| ((i * 37 + 5) % vocab) as Token).collect();
        self.bind(SequenceSpec { prompt: tokens.clone(), final_len: SLOTS, ..SequenceSpec::default() });
        let mut random = Random::new(7);
        let hidden: Vec<f32> = (0..TOKENS * hidden_width).map(|_| random.unit()).collect();
        let mut all = Vec::new();
        let bounds: Vec<usize> = [0, 30].into_iter().chain(46..=TOKENS).collect();
        for (id, range) in (1..).map(StepId).zip(bounds.windows(2).map(|two| two[0]..two[1])) {
            cache.claim(id, &[ClaimRow::new(seq, range.len() as u32)]).unwrap();
            let mut step = Step::default();
            cache.plan(id, &mut step.plan).unwrap();
            let span = Span::new(0, range.len());
            let sample_from = if range.start == 0 { range.len() as u32 } else { 0 };
            let row =
                BatchRow { seq, tokens: span, pool_row: PoolRow(0), sample_from, ..BatchRow::default() };
            let tokens = tokens[range.clone()].to_vec();
            step.batch = Batch { step: id, tokens, rows: vec![row], logits: true, ..Batch::default() };
            all.extend(self.run(step, &hidden[range.start * hidden_width..range.end * hidden_width]));
            cache.retire(id).unwrap();
        }
        all
    }

    /// Runs steps with chains of drafts and rejects a random number of them. Then recomputes the
    /// whole sequence in one step, checks that the bits are equal, and returns its logits.
    pub(crate) fn drafted_logits(mut self, seed: u64) -> Vec<f32> {
        let (vocab, mut cache, mut random) = (self.program().vocab, self.cache(), Random::new(seed));
        let mut seq = cache.open().unwrap();
        self.bind(SequenceSpec { final_len: SLOTS, ..SequenceSpec::default() });
        let (mut tokens, mut last): (Vec<Token>, Vec<f32>) = (Vec::new(), Vec::new());
        for id in 1..=10 {
            let count = if tokens.is_empty() { 12 } else { random.between(1, DRAFTS + 1) };
            let fed: Vec<Token> = (0..count).map(|_| random.below(vocab as u64) as Token).collect();
            let drafts = if tokens.is_empty() { 0 } else { count - 1 };
            let input = RowInput { drafts, ..row_input(seq, &fed) };
            last = self.run(step(&mut *cache, id, &[input]), &[]);
            cache.retire(StepId(id)).unwrap();
            tokens.extend(&fed);
            let rejected = if id == 10 { 0 } else { random.between(0, drafts) };
            if rejected > 0 {
                tokens.truncate(tokens.len() - rejected as usize);
                cache.rewind().unwrap().rewind_to(seq, tokens.len() as u32).unwrap();
            }
        }
        cache.close(seq).unwrap();
        seq = cache.open().unwrap();
        let recomputed = self.run(step(&mut *cache, 11, &[row_input(seq, &tokens)]), &[]);
        assert!(recomputed.ends_with(&last), "rejected drafts change the logits");
        recomputed
    }

    fn cache(&self) -> Box<dyn Cache> {
        let config = CacheConfig { states: states(self.program()), ..CacheConfig::new(SLOTS) };
        build(CacheKind::Contiguous, &config).unwrap()
    }
}

/// Loads a program on a backend.
pub(crate) type Load<'a> = dyn Fn(&Program) -> Backend + 'a;

/// Runs steps on a backend and returns logits.
pub(crate) type Logits<'a> = dyn Fn(Backend) -> Vec<f32> + Sync + 'a;

/// The CPU backend on one thread.
pub(crate) fn cpu(
    program: &Program,
    source: Arc<dyn WeightSource + Send + Sync>,
    precision: Precision,
) -> Backend {
    let loaded = CpuModel::load(program, source, precision, Arc::new(ThreadPool::new(1))).unwrap();
    let limits = kvasir_cpu::Limits { slots: SLOTS, tokens: 64, rows: 1, kv: KvType::F32, ring: None };
    let executor = CpuExecutor::new(Arc::new(loaded), limits).unwrap();
    Backend::Cpu(Box::new(executor.with_states(states(program)).unwrap()))
}

pub(crate) fn plain(program: &Program, checkpoint: &Checkpoint) -> Backend {
    let model = Model { target: program.clone(), predictions: Vec::new() };
    let model = PlainModel::load(&model, checkpoint).unwrap();
    let limits = kvasir_plain::Limits { slots: SLOTS, tokens: 64, rows: 1, states: states(program) };
    Backend::Plain(Box::new(PlainExecutor::new(&model, limits)))
}

/// Logits of each rank; ranks run concurrently.
fn run_ranks(parts: &[Program], load: &Load<'_>, logits: &Logits<'_>) -> Vec<Vec<f32>> {
    let ranks = parts.iter().zip(ThreadRank::all(parts.len()));
    let loaded: Vec<Backend> = ranks.map(|(part, rank)| load(part).among(rank)).collect();
    std::thread::scope(|scope| {
        let start = |backend: Backend| {
            let run = move || logits(backend);
            scope.spawn(move || catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| std::process::abort()))
        };
        let running: Vec<_> = loaded.into_iter().map(start).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Standard deviation.
fn deviation(x: &[f32]) -> f32 {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    (x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
}

/// Checks the shards of a program: equal bits on all ranks and in one process, and logits within
/// `allowed` standard deviations of the unsharded program's. Returns the largest error.
pub(crate) fn check(name: &str, whole: &Program, ranks: usize, load: &Load<'_>, allowed: f32) -> f32 {
    check_with(name, whole, ranks, load, &Backend::logits, allowed)
}

/// Like [`check`], with the steps of `logits` instead of [`Backend::logits`].
pub(crate) fn check_with(
    name: &str,
    whole: &Program,
    ranks: usize,
    load: &Load<'_>,
    logits: &Logits<'_>,
    allowed: f32,
) -> f32 {
    let parts: Vec<Program> = (0..ranks).map(|rank| whole.for_rank(rank, ranks).unwrap()).collect();
    let all = run_ranks(&parts, load, logits);
    assert!(all.iter().all(|logits| *logits == all[0]), "{name}, {ranks} ranks: ranks differ");
    let one_process = logits(load(&whole.for_all_ranks(ranks).unwrap()));
    assert!(one_process == all[0], "{name}, {ranks} ranks: one process with all shards differs from them");
    let unsharded = logits(load(whole));
    assert_eq!(unsharded.len(), one_process.len(), "{name}");
    assert!(unsharded.iter().all(|v| v.is_finite()), "{name}");
    let worst = unsharded.iter().zip(&one_process).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let error = worst / deviation(&unsharded);
    assert!(error <= allowed, "{name}, {ranks} ranks: off by {error} deviations, allowed {allowed}");
    error
}

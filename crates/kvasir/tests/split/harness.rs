//! Runs a program on one process or as ranks, and compares their logits.

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Precision, ThreadPool, WeightSource};
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, SequenceSpec, Step, ThreadRank};
use kvasir_formats::Checkpoint;
use kvasir_kv::{CacheConfig, CacheKind, ClaimRow, Lowering, Span, StateConfig, StepId, Token, build};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_program::{Model, Program};
use kvasir_testkit::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const SLOTS: u32 = 128;
const TOKENS: usize = 50;
/// The state pool of programs with recurrent layers.
const STATES: StateConfig = StateConfig { live: 1, checkpoints: 2, tail_rows: 0, interval: 16 };

/// The pool of recurrent states that a program needs.
pub(crate) fn states(program: &Program) -> Option<StateConfig> {
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
    fn logits(mut self, vocab: usize, hidden_width: usize) -> Vec<f32> {
        let config = CacheConfig { states: states(self.program()), ..CacheConfig::new(SLOTS) };
        let mut cache = build(CacheKind::Contiguous, &config).unwrap();
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
}

/// A backend for a program.
pub(crate) type Load<'a> = dyn Fn(&Program) -> Backend + 'a;

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

fn run(program: &Program, load: &Load<'_>) -> Vec<f32> {
    load(program).logits(program.vocab, if program.takes_hidden() { program.hidden } else { 0 })
}

/// Logits of each rank; ranks run concurrently.
fn run_ranks(parts: &[Program], load: &Load<'_>) -> Vec<Vec<f32>> {
    let ranks = parts.iter().zip(ThreadRank::all(parts.len()));
    let loaded: Vec<(&Program, Backend)> = ranks.map(|(part, rank)| (part, load(part).among(rank))).collect();
    std::thread::scope(|scope| {
        let start = |(part, backend): (&Program, Backend)| {
            let (vocab, hidden) = (part.vocab, if part.takes_hidden() { part.hidden } else { 0 });
            let run = move || backend.logits(vocab, hidden);
            scope.spawn(move || catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| std::process::abort()))
        };
        let running: Vec<_> = loaded.into_iter().map(start).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn deviation(x: &[f32]) -> f32 {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    (x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
}

/// Checks the shards of a program: equal bits on all ranks and in one process, and logits within
/// `allowed` standard deviations of the unsharded program's. Returns the largest error.
pub(crate) fn check(name: &str, whole: &Program, ranks: usize, load: &Load<'_>, allowed: f32) -> f32 {
    let parts: Vec<Program> = (0..ranks).map(|rank| whole.for_rank(rank, ranks).unwrap()).collect();
    let all = run_ranks(&parts, load);
    assert!(all.iter().all(|logits| *logits == all[0]), "{name}, {ranks} ranks: ranks differ");
    let alone = run(&whole.for_all_ranks(ranks).unwrap(), load);
    assert!(alone == all[0], "{name}, {ranks} ranks: one process that runs all shards has other bits");
    let plain = run(whole, load);
    assert_eq!(plain.len(), alone.len(), "{name}");
    assert!(plain.iter().all(|v| v.is_finite()), "{name}");
    let worst = plain.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let error = worst / deviation(&plain);
    assert!(error <= allowed, "{name}, {ranks} ranks: off by {error} deviations, allowed {allowed}");
    error
}

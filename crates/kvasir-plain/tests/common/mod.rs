//! Test helper: one sequence on a contiguous cache, driven step by step. The cache has states if
//! the model has recurrent layers.
#![allow(dead_code, clippy::unwrap_used)] // helpers: every test file uses its own part, and a failure is a failed test

pub(crate) mod steps;

use kvasir_exec::{Executor, PoolRow, SequenceSpec, Step};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, CacheConfig, CacheKind, Lowering, Plan, SeqId, StateConfig, Token, build};
use kvasir_plain::{Limits, Pass, PlainExecutor, PlainModel};
use kvasir_program::{Model, Tap};
use kvasir_testkit::steps::row_input;
use std::path::{Path, PathBuf};

/// The test checkpoints of the repository, or those under `KVASIR_MODELS`.
pub(crate) fn cases() -> Vec<PathBuf> {
    let cases = kvasir_testkit::paths::models();
    assert!(cases.len() >= 24, "only {} checkpoints", cases.len());
    cases
}

pub(crate) fn load(case: &Path) -> PlainModel {
    let checkpoint = Checkpoint::open(case).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    PlainModel::load(&model, &checkpoint).unwrap()
}

/// Sizes of the state pools of executors and caches, for recurrent models.
pub(crate) const STATES: StateConfig = StateConfig { live: 4, checkpoints: 12, tail_rows: 6, interval: 16 };

pub(crate) fn limits() -> Limits {
    Limits { slots: 512, tokens: 256, rows: 4, states: Some(STATES) }
}

/// A cache for a model, with states if it has recurrent layers.
pub(crate) fn cache(kind: CacheKind, model: &PlainModel) -> Box<dyn Cache> {
    cache_for(kind, model.program().is_recurrent())
}

fn cache_for(kind: CacheKind, is_recurrent: bool) -> Box<dyn Cache> {
    let states = is_recurrent.then_some(STATES);
    build(kind, &CacheConfig { block_size: 8, dummy: true, states, ..CacheConfig::new(496) }).unwrap()
}

/// Rewrites a cache's plan into the explicit masks that the executor accepts.
pub(crate) fn lower(step: &mut Step) {
    let mut lowered = Plan::default();
    Lowering::default().lower(&step.plan, &mut lowered);
    step.plan = lowered;
}

/// One sequence with its executor and cache.
pub(crate) struct Stream {
    pub(crate) executor: PlainExecutor,
    pub(crate) cache: Box<dyn Cache>,
    pub(crate) seq: SeqId,
    next: u64,
}

impl Stream {
    pub(crate) fn new(mut executor: PlainExecutor, prompt: &[Token], final_len: usize) -> Self {
        let spec =
            SequenceSpec { prompt: prompt.to_vec(), final_len: final_len as u32, ..SequenceSpec::default() };
        executor.bind(PoolRow(0), spec);
        let mut cache = cache_for(CacheKind::Contiguous, executor.program().is_recurrent());
        let seq = cache.open().unwrap();
        Self { executor, cache, seq, next: 1 }
    }

    /// Claims and plans a step in which the tokens from `sample_from` on are sampled.
    pub(crate) fn step(&mut self, tokens: &[Token], sample_from: usize) -> Step {
        let cached = self.cache.len(self.seq).unwrap();
        let mut step = steps::step(&mut *self.cache, self.next, &[row_input(self.seq, tokens)]);
        self.next += 1;
        let row = &mut step.batch.rows[0];
        (row.cached, row.context_len, row.last_block_tokens) = (cached, cached + tokens.len() as u32, 1);
        row.sample_from = sample_from as u32;
        step
    }

    /// Runs a forward pass without sampling.
    pub(crate) fn pass(
        &mut self,
        tokens: &[Token],
        from: usize,
        hidden: Option<&[f32]>,
        taps: &[Tap],
    ) -> Pass {
        let step = self.step(tokens, from);
        let pass = self.executor.pass(&step, hidden, taps).unwrap();
        self.cache.retire(step.plan.step).unwrap();
        pass
    }

    /// Runs tokens; returns the one sampled after the last, and the logits.
    pub(crate) fn submit(&mut self, tokens: &[Token]) -> (Token, Vec<f32>) {
        let step = self.step(tokens, tokens.len() - 1);
        let pending = self.executor.submit(Box::new(step)).unwrap();
        let (step, result) = self.executor.wait(pending);
        result.unwrap();
        self.cache.retire(step.plan.step).unwrap();
        (step.output.tokens[0], step.output.logits)
    }
}

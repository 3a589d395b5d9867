//! `Setup`: the cache, policy, drafts and preemption under which a test runs its requests.

use crate::backend::{Backend, DRAFTS};
use crate::common::oracle::Oracle;
use crate::common::{Arrivals, Coverage, Outputs, RecordingExecutor, policy};
use kvasir::AnyExecutor;
use kvasir_engine::{Core, Engine, Limits, NgramDrafter, Order, Request};
use kvasir_kv::{CacheConfig, CacheKind, StateConfig, build};

/// Slots per block.
pub(crate) const BLOCK: u32 = 8;

/// Source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafts {
    None,
    Ngram,
    Oracle,
    Mtp,
}

/// The engine and the load of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) cache: CacheKind,
    pub(crate) policy: &'static str,
    pub(crate) slots: u32,
    pub(crate) checkpoints: u32,
    pub(crate) overlap: bool,
    pub(crate) drafts: Drafts,
    /// Whether every seventh turn preempts a running request.
    pub(crate) preempts: bool,
}

/// One request at a time, whole prompts, no drafts.
pub(crate) const ALONE: Setup = Setup {
    cache: CacheKind::Contiguous,
    policy: "whole",
    slots: 400,
    checkpoints: 0,
    overlap: false,
    drafts: Drafts::None,
    preempts: false,
};

impl Setup {
    /// Builds the engine. `Drafts::Oracle` proposes `outputs`.
    fn engine(&self, model: &Backend, outputs: &Outputs) -> Engine<RecordingExecutor<AnyExecutor>> {
        let is_rectangular = self.policy == "rectangular";
        let max_num_seqs = if self.cache.holds_one_sequence() { 1 } else { 5 };
        let states = StateConfig {
            live: max_num_seqs,
            checkpoints: self.checkpoints,
            tail_rows: DRAFTS,
            interval: 4 * BLOCK,
        };
        let config = CacheConfig {
            block_size: if self.cache.is_block_based() { BLOCK } else { 1 },
            max_sequences: 16,
            sharing: true,
            dummy: is_rectangular,
            states: Some(states),
            ..CacheConfig::new(self.slots)
        };
        let limits = Limits {
            max_num_seqs,
            max_num_batched_tokens: if is_rectangular || self.policy == "whole" { 400 } else { 24 },
            max_model_len: 200,
            prefix_cache: self.cache.is_block_based(),
            ..Limits::default()
        };
        let cache = build(self.cache, &config).unwrap();
        let slots = cache.shape().capacity + BLOCK;
        let inner = model.executor(slots, states, self.drafts == Drafts::Mtp);
        let inner = if self.overlap { inner.on_thread().unwrap() } else { inner };
        let executor = RecordingExecutor::new(inner, model.program());
        let core = Core::new(limits, Order::Fcfs, policy(self.policy), cache);
        let engine = Engine::new(core, executor, || 0).overlap(self.overlap);
        match self.drafts {
            Drafts::None => engine,
            Drafts::Ngram => engine.draft(Box::new(NgramDrafter::new(1, DRAFTS))).unwrap(),
            Drafts::Oracle => engine.draft(Box::new(Oracle::new(outputs, DRAFTS))).unwrap(),
            Drafts::Mtp => engine.draft_in_executor(DRAFTS, DRAFTS, false).unwrap(),
        }
    }

    /// Runs requests that arrive one by one, each as `n` siblings; returns outputs by tag.
    /// `Drafts::Oracle` proposes the outputs `expected`.
    pub(crate) fn run(
        &self,
        model: &Backend,
        requests: &[Request],
        n: u32,
        expected: &Outputs,
        coverage: &mut Coverage,
    ) -> Outputs {
        let arrivals = Arrivals { requests, siblings: n, interval: 3, max_turns: 4000, context: self };
        arrivals.run(&mut self.engine(model, expected), coverage, |core, turn, ids| {
            if self.preempts && turn % 7 == 5 {
                ids.values().rev().any(|id| core.preempt(*id));
            }
            core.cache().check().unwrap();
        })
    }
}

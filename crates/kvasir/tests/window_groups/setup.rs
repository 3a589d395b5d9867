//! `Setup`: the configuration under which a test runs its requests.

use crate::common::oracle::Oracle;
use crate::common::{Arrivals, Coverage, Outputs, RecordingExecutor};
use kvasir::{AnyExecutor, LoadedModel};
use kvasir_engine::{
    Chunking, Engine, EngineConfig, Facts, Mixing, NgramDrafter, PolicyConfig, RectangularConfig, Request,
    Resolved,
};
use kvasir_kv::CacheKind;

/// Slots per block.
pub(crate) const BLOCK: u32 = 8;
/// Maximum draft tokens per sequence and step.
const DRAFTS: u32 = 4;

/// Source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafts {
    None,
    Ngram,
    Oracle,
}

/// Slots of the window groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// As many as the configuration chooses.
    Configured,
    /// Enough for two sequences and the steps in flight.
    Tight,
    /// None: the layers join the full group.
    Joined,
}

/// The engine and the load of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) cache: CacheKind,
    pub(crate) policy: &'static str,
    pub(crate) slots: u32,
    pub(crate) windows: Windows,
    pub(crate) overlap: bool,
    pub(crate) drafts: Drafts,
    /// Whether every seventh turn preempts a running request.
    pub(crate) preempts: bool,
}

/// One request at a time, whole prompts, no drafts, one pool.
pub(crate) const ALONE: Setup = Setup {
    cache: CacheKind::Contiguous,
    policy: "whole",
    slots: 400,
    windows: Windows::Joined,
    overlap: false,
    drafts: Drafts::None,
    preempts: false,
};

fn policy(name: &str) -> PolicyConfig {
    let chunked = |tokens, mixing| PolicyConfig::Chunked { max_extend_tokens: tokens, mixing };
    match name {
        "whole" => PolicyConfig::PrefillFirst { chunking: Chunking::Off, delay_factor: 0.0 },
        "prefill-first" => {
            PolicyConfig::PrefillFirst { chunking: Chunking::On { cap: Some(17) }, delay_factor: 0.0 }
        }
        "chunked" => chunked(13, Mixing::Off),
        "mixed" => chunked(19, Mixing::On { target: None }),
        "tokens" => chunked(1, Mixing::Off),
        "rectangular" => {
            let rectangular = RectangularConfig { chunk_size: 16, max_batch: 4, ..Default::default() };
            PolicyConfig::Rectangular(rectangular)
        }
        other => panic!("unknown policy {other}"),
    }
}

impl Setup {
    /// The configuration, as `kvasir serve` resolves it.
    pub(crate) fn resolve(&self, loaded: &LoadedModel) -> Resolved {
        let is_whole = matches!(self.policy, "whole" | "rectangular");
        let config = EngineConfig {
            cache: Some(self.cache),
            policy: policy(self.policy),
            kv_capacity: Some(self.slots),
            block_size: self.cache.is_block_based().then_some(BLOCK),
            max_num_seqs: Some(if self.cache.holds_one_sequence() { 1 } else { 5 }),
            max_num_batched_tokens: Some(if is_whole { 400 } else { 24 }),
            max_model_len: Some(250),
            overlap: Some(self.overlap),
            transfers_kv: self.windows == Windows::Joined,
            ..EngineConfig::default()
        };
        let facts = Facts { longest_draft: DRAFTS, ..loaded.facts(Some(self.slots)) };
        let mut resolved = config.resolve(&facts).unwrap();
        if self.windows == Windows::Tight {
            for window in &mut resolved.cache.windows {
                let steps = resolved.limits.max_num_batched_tokens * (1 + u32::from(self.overlap));
                let slots = 2 * window.slots_per_sequence(resolved.cache.block_size) + steps;
                window.capacity = window.capacity.min(slots.next_multiple_of(resolved.cache.block_size));
            }
        }
        resolved
    }

    /// Builds the engine. `Drafts::Oracle` proposes `outputs`.
    pub(crate) fn engine(
        &self,
        loaded: &LoadedModel,
        outputs: &Outputs,
    ) -> Engine<RecordingExecutor<AnyExecutor>> {
        let core = self.resolve(loaded).core().unwrap();
        let inner = loaded.executor_for(&core).unwrap();
        let inner = if self.overlap { inner.on_thread().unwrap() } else { inner };
        let executor = RecordingExecutor::new(inner, loaded.program());
        let engine = Engine::new(core, executor, || 0).overlap(self.overlap);
        match self.drafts {
            Drafts::None => engine,
            Drafts::Ngram => engine.draft(Box::new(NgramDrafter::new(1, DRAFTS))).unwrap(),
            Drafts::Oracle => engine.draft(Box::new(Oracle::new(outputs, DRAFTS))).unwrap(),
        }
    }

    /// Runs requests that arrive one by one, each as `n` siblings; returns outputs by tag.
    /// `Drafts::Oracle` proposes the outputs `expected`.
    pub(crate) fn run(
        &self,
        loaded: &LoadedModel,
        requests: &[Request],
        n: u32,
        expected: &Outputs,
        coverage: &mut Coverage,
    ) -> Outputs {
        let mut engine = self.engine(loaded, expected);
        self.run_on(&mut engine, requests, n, coverage)
    }

    /// Runs requests on an engine, which may have run others.
    pub(crate) fn run_on(
        &self,
        engine: &mut Engine<RecordingExecutor<AnyExecutor>>,
        requests: &[Request],
        n: u32,
        coverage: &mut Coverage,
    ) -> Outputs {
        let arrivals = Arrivals { requests, siblings: n, interval: 3, max_turns: 4000, context: self };
        arrivals.run(engine, coverage, |core, turn, ids| {
            if self.preempts && turn % 7 == 5 {
                ids.values().rev().any(|id| core.preempt(*id));
            }
            core.cache().check().unwrap();
        })
    }
}

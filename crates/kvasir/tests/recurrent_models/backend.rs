//! A model with its multi-token prediction layer, loaded on one of the backends.

use kvasir::AnyExecutor;
use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Precision, ThreadPool};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_formats::Checkpoint;
use kvasir_kv::StateConfig;
use kvasir_plain::{DraftSource, PlainExecutor, PlainModel};
use kvasir_program::{Model, Program, Tap};
use std::sync::Arc;

/// Maximum draft tokens per sequence and step.
pub(crate) const DRAFTS: u32 = 4;
/// Maximum tokens per step.
const TOKENS: u32 = 400;
/// Maximum sequences per step.
const ROWS: u32 = 16;
/// The hidden states that the prediction layer reads: a tap of the target for the first draft, then
/// its own.
const TAPS: (Option<Tap>, Option<Tap>) = (Some(Tap::FinalNorm), Some(Tap::FinalNorm));

/// A loaded model and its prediction layer.
pub(crate) enum Backend {
    Plain(PlainModel),
    Cpu { target: Arc<CpuModel>, prediction: Option<Arc<CpuModel>> },
}

impl Backend {
    /// The model on each backend that supports it, with the backend's name; the CPU backend runs in
    /// f32.
    pub(crate) fn all(model: &Model, checkpoint: &Checkpoint) -> Vec<(&'static str, Self)> {
        let plain = ("plain", Self::Plain(PlainModel::load(model, checkpoint).unwrap()));
        let source = Arc::new(checkpoint.clone());
        let threads = Arc::new(ThreadPool::new(2));
        let load = |program: &Program| {
            let threads = Arc::clone(&threads);
            let loaded = CpuModel::load(program, Arc::clone(&source) as _, Precision::F32, threads);
            Arc::new(loaded.unwrap().keeping(&[Tap::FinalNorm]).unwrap())
        };
        let cpu = Self::Cpu { target: load(&model.target), prediction: model.predictions.first().map(load) };
        vec![plain, ("cpu", cpu)]
    }

    pub(crate) fn program(&self) -> &Program {
        match self {
            Self::Plain(model) => model.program(),
            Self::Cpu { target, .. } => target.program(),
        }
    }

    /// An executor. If `drafts`, the prediction layer of the model proposes drafts in it.
    pub(crate) fn executor(&self, slots: u32, states: StateConfig, drafts: bool) -> AnyExecutor {
        let (program, shape) = (self.program(), TreeShape::chain(DRAFTS));
        let (hidden, target_vocab) = (program.hidden, program.vocab);
        let kind = DraftModelKind { hidden, target_vocab, ..DraftModelKind::default() };
        match self {
            Self::Plain(model) => {
                let limits = kvasir_plain::Limits { slots, tokens: TOKENS, rows: ROWS, states: Some(states) };
                let executor = PlainExecutor::new(model, limits);
                if !drafts {
                    return AnyExecutor::Plain(Box::new(executor));
                }
                let source = DraftSource::Prediction;
                let drafting = kvasir_plain::Drafting::new(model, source, kind, shape, limits, TAPS);
                AnyExecutor::Plain(Box::new(executor.drafting(drafting.unwrap())))
            }
            Self::Cpu { target, prediction } => {
                let limits =
                    kvasir_cpu::Limits { slots, tokens: TOKENS, rows: ROWS, kv: KvType::F32, ring: None };
                let executor = CpuExecutor::new(Arc::clone(target), limits).unwrap();
                let executor = executor.with_states(Some(states)).unwrap();
                if !drafts {
                    return AnyExecutor::Cpu(Box::new(executor));
                }
                let prediction = Arc::clone(prediction.as_ref().unwrap());
                let drafting = kvasir_cpu::Drafting::new(prediction, kind, shape, limits, TAPS);
                AnyExecutor::Cpu(Box::new(executor.drafting(drafting.unwrap())))
            }
        }
    }
}

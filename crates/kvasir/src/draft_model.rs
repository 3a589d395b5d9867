//! The draft model of a target, opened and loaded for the same backend.

use crate::error::Error;
use kvasir_cpu::{CpuModel, LoadOptions, PackedFile, Precision, ThreadPool};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_formats::Checkpoint;
use kvasir_plain::{DraftSource, PlainModel};
use kvasir_program::{LayerFacts, Model, Program, Tap};
use std::sync::Arc;

/// A draft model, not loaded yet.
pub(crate) struct OpenedDraft {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) model: Model,
    pub(crate) source: DraftSource,
    pub(crate) kind: DraftModelKind,
    pub(crate) shape: TreeShape,
    /// What it takes of the target, and what takes the place of that while drafting.
    pub(crate) taps: (Option<Tap>, Option<Tap>),
}

/// A draft model, loaded for a backend.
pub(crate) struct LoadedDraft {
    pub(crate) weights: DraftWeights,
    pub(crate) source: DraftSource,
    pub(crate) kind: DraftModelKind,
    pub(crate) shape: TreeShape,
    pub(crate) taps: (Option<Tap>, Option<Tap>),
    /// K/V layout of its layers.
    pub(crate) layers: Vec<LayerFacts>,
}

pub(crate) enum DraftWeights {
    Cpu(Arc<CpuModel>),
    Plain(PlainModel),
}

impl OpenedDraft {
    pub(crate) fn program(&self) -> &Program {
        match self.source {
            DraftSource::Target => &self.model.target,
            DraftSource::Prediction => &self.model.predictions[0],
        }
    }

    /// The activations of the target that it reads, which the target must keep.
    pub(crate) fn tap(&self) -> Option<Tap> {
        self.taps.0
    }

    pub(crate) fn load_cpu(
        self,
        precision: Precision,
        threads: &Arc<ThreadPool>,
        packed_file: Option<Arc<PackedFile>>,
    ) -> Result<LoadedDraft, Error> {
        let program = self.program();
        let source = Arc::new(self.checkpoint.clone());
        let options = LoadOptions { packed_file, ..LoadOptions::default() };
        let model = CpuModel::load_with(program, source, precision, Arc::clone(threads), options)?;
        let model = match self.taps.1 {
            Some(tap) => model.keeping(&[tap])?,
            None => model,
        };
        Ok(self.with(DraftWeights::Cpu(Arc::new(model))))
    }

    pub(crate) fn load_plain(self) -> Result<LoadedDraft, Error> {
        let model = PlainModel::load(&self.model, &self.checkpoint)?;
        Ok(self.with(DraftWeights::Plain(model)))
    }

    fn with(self, weights: DraftWeights) -> LoadedDraft {
        let layers = self.program().layers.clone();
        LoadedDraft {
            weights,
            source: self.source,
            kind: self.kind,
            shape: self.shape,
            taps: self.taps,
            layers,
        }
    }
}

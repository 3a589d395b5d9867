use crate::weights::Weights;
use kvasir_formats::{Checkpoint, Error};
use kvasir_program::{Buffers, Model, Program, Tap};
use std::{collections::HashMap, sync::Arc};

/// A checkpoint's programs with their weights in f32; any number of executors may share it.
pub struct PlainModel {
    pub(crate) target: Arc<Compiled>,
    pub(crate) predictions: Vec<Arc<Compiled>>,
}

/// One program, ready to run.
pub(crate) struct Compiled {
    pub(crate) program: Program,
    pub(crate) weights: Weights,
    pub(crate) buffers: Buffers,
}

impl PlainModel {
    /// Unpacks the weights of all programs. Every tap stays readable.
    pub fn load(model: &Model, checkpoint: &Checkpoint) -> Result<Self, Error> {
        let mut shared = HashMap::new();
        let mut compile = |program: &Program| {
            let weights = Weights::load(program, checkpoint, &mut shared)?;
            let keep: Vec<_> =
                program.taps.iter().map(|(_, value)| *value).chain(program.head_input()).collect();
            let buffers = Buffers::plan(program, &keep);
            Ok(Arc::new(Compiled { program: program.clone(), weights, buffers }))
        };
        Ok(Self {
            target: compile(&model.target)?,
            predictions: model.predictions.iter().map(compile).collect::<Result<_, Error>>()?,
        })
    }

    /// The target's program.
    pub fn program(&self) -> &Program {
        &self.target.program
    }
}

/// What a pass over a step yields beside the K and V it keeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// Logits of the rows that are sampled, one vocabulary after the other.
    pub logits: Vec<f32>,
    /// The hidden states that those logits were made of.
    pub hidden: Vec<f32>,
    /// The values that were asked for, a row per token.
    pub taps: Vec<(Tap, Vec<f32>)>,
}

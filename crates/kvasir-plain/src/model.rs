//! [`PlainModel`]: programs with dequantized f32 weights and buffer plans, shared by executors.

use crate::weights::Weights;
use kvasir_formats::{Checkpoint, Error};
use kvasir_program::{Buffers, Model, Program, Tap};
use std::{collections::HashMap, sync::Arc};

/// The programs of a checkpoint with their weights in f32; any number of executors may share it.
pub struct PlainModel {
    pub(crate) target: Arc<Compiled>,
    pub(crate) predictions: Vec<Arc<Compiled>>,
}

/// One program with its weights and activation buffers, ready to run.
pub(crate) struct Compiled {
    pub(crate) program: Program,
    pub(crate) weights: Weights,
    pub(crate) buffers: Buffers,
}

impl PlainModel {
    /// Dequantizes the weights of all programs (4 bytes per parameter). Every tap stays readable.
    pub fn load(model: &Model, checkpoint: &Checkpoint) -> Result<Self, Error> {
        let mut shared = HashMap::new();
        let mut compile = |program: &Program| {
            let weights = Weights::load(program, checkpoint, &mut shared)?;
            let invalid = |(name, why): (&str, String)| Error::at(format!("tensor {name}"), why);
            program.check_token_tables(|table| weights.get(table)).map_err(invalid)?;
            let keep: Vec<_> =
                program.taps.iter().map(|(_, value)| *value).chain(program.hidden_output()).collect();
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

/// The results of a forward pass, beside the K and V that it wrote to the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// Logits of the sampled rows, `vocab` numbers each.
    pub logits: Vec<f32>,
    /// The inputs of the LM head for those rows (after the final norm); of an encoder, the pooled
    /// vectors or the scores.
    pub hidden: Vec<f32>,
    /// The requested taps, one row per token.
    pub taps: Vec<(Tap, Vec<f32>)>,
}

//! [`Model`]: all programs of a checkpoint, built from its config and checked against its tensors.
//!
//! Guarded by `tests/` of this crate (published configs, hostile configs) and by
//! `kvasir-plain/tests/programs.rs`, which runs on real checkpoints.

use crate::arch::Architecture;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::builder::source::Source;
use crate::error::{ProgramError, Result};
use crate::ir::pooling::Pooling;
use crate::ir::program::{Program, Purpose};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The programs of one checkpoint: target model and MTP layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The target model.
    pub target: Program,
    /// Its multi-token-prediction (MTP) layers, in order. They share weights with the target by
    /// name.
    pub predictions: Vec<Program>,
}

/// Refuses pooling modes other than the last token for decoders, whose vector is the last hidden
/// state.
fn check_pooling(target: &Program, config: Config<'_>) -> Result<()> {
    match config.text("pooling_mode")? {
        Some(other) if !target.is_encoder() && other != Pooling::Last.name() => {
            Err(config
                .bad("pooling_mode", format!("is {other:?}, only \"lasttoken\" is supported for decoders")))
        }
        _ => Ok(()),
    }
}

impl Model {
    /// Builds the programs and checks the checkpoint against them. A missing, misshapen or unused
    /// tensor is an error that names it.
    ///
    /// MTP layers that the config announces but of which the checkpoint has no tensor are left out.
    pub fn build(source: &Source) -> Result<Self> {
        let architecture = Architecture::of(&source.config)?;
        let config = &architecture.spelled_out(&source.config);
        let mut b = Builder::new(source, config, architecture.name(), Purpose::Target)?;
        (architecture.target)(&mut b)?;
        let (target, mut unread) = (b.program, b.unread);
        check_pooling(&target, Config::new(config))?;
        let mut predictions = Vec::new();
        if let Some(build) = architecture.prediction {
            let facts = Config::new(config);
            let layers = facts.number("num_hidden_layers")?;
            let declared = facts.count("num_nextn_predict_layers")?;
            if declared > 64 {
                return Err(facts.bad("num_nextn_predict_layers", format!("is {declared}, more than 64")));
            }
            for index in 0..declared {
                let there = source.has_prefix(&format!("model.layers.{}.", layers + index));
                if source.tensors.is_some() && !there {
                    continue;
                }
                let purpose = Purpose::Prediction { index: index as u32 };
                let mut b = Builder::new(source, config, architecture.name(), purpose)?;
                build(&mut b)?;
                predictions.push(b.program);
                unread.extend(b.unread);
            }
        }
        let model = Self { target, predictions };
        model.check_unused(source, &unread)?;
        Ok(model)
    }

    /// The target's program, then those of the MTP layers.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        std::iter::once(&self.target).chain(&self.predictions)
    }

    /// Fails if the checkpoint has a tensor that no program uses, so that no part of a model is
    /// ignored silently. `unread` lists tensors that the architecture permits without using them.
    fn check_unused(&self, source: &Source, unread: &[String]) -> Result<()> {
        let Some(tensors) = &source.tensors else { return Ok(()) };
        let names: HashSet<&str> =
            self.programs().flat_map(|p| &p.weights).map(|w| w.name.as_str()).collect();
        let used = |name: &str| {
            // Scales and packed blocks belong to the weight whose name they extend. Old checkpoints
            // store RoPE frequencies, which follow from the config.
            let packed = |end| name.strip_suffix(end).is_some_and(|n| names.contains(n) && !source.has(n));
            names.contains(name)
                || unread.iter().any(|unread| unread == name)
                || name.strip_suffix("_scale_inv").is_some_and(|n| names.contains(n))
                || packed("_blocks")
                || packed("_scales")
                || name.ends_with(".rotary_emb.inv_freq")
        };
        let mut unused = tensors.keys().filter(|name| !used(name));
        match unused.next() {
            None => Ok(()),
            Some(name) => Err(ProgramError::Unused { name: name.clone(), count: 1 + unused.count() }),
        }
    }
}

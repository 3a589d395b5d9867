//! `--spec mtp`: the target's own multi-token-prediction layer, chained. That of the built-in model
//! is a file apart.
//!
//! Of several layers, each is trained for one level and continues from the states of the one before,
//! so only the first level can be drafted.

use crate::built_in;
use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::speculation::method::{DraftMethod, DraftTarget, Proposer};
use crate::speculation::parameters::{CHAIN, DraftParameters};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_plain::DraftSource;
use kvasir_program::{Model, Tap};
use kvasir_sim::Shape;
use std::fmt::Display;

pub(super) const MTP: DraftMethod = DraftMethod {
    name: "mtp",
    syntax: "[:K]",
    summary: "the model's own multi-token-prediction layer",
    parse: |text| {
        if text.is_empty() {
            return Ok(DraftParameters::new(TreeShape::chain(CHAIN), None));
        }
        match text.parse::<u32>() {
            Ok(k @ 1..=16) => Ok(DraftParameters::new(TreeShape::chain(k), Some(k))),
            _ => Err(format!("`{text}` is not K, a number from 1 to 16")),
        }
    },
    // One more layer, and the target's LM head.
    proposer: Proposer::Model { open, shape: |target, _| Ok(Shape { name: "mtp", layers: 1, ..target }) },
};

fn open(target: DraftTarget<'_>, parameters: &DraftParameters) -> Result<OpenedDraft, Error> {
    let shape = parameters.shape;
    let named = |error: &dyn Display| Error::invalid("speculation", format!("mtp: {error}"));
    let (mut checkpoint, mut model) = (target.checkpoint.clone(), target.model.clone());
    if target.is_built_in {
        checkpoint.add_predictions(&built_in::mtp()?);
        model = Model::build(&checkpoint.source()).map_err(|error| named(&error))?;
    }
    match model.predictions.len() {
        0 => return Err(named(&"the model has no multi-token-prediction layer")),
        several @ 2.. if shape.depth > 1 => {
            let why = "only the first can draft: use `mtp:1`";
            return Err(named(&format!("the model has {several} prediction layers, one per draft; {why}")));
        }
        _ => {}
    }
    let kind = DraftModelKind { hidden: target.model.target.hidden, ..DraftModelKind::default() };
    Ok(OpenedDraft {
        checkpoint,
        model,
        source: DraftSource::Prediction,
        kind,
        shape,
        taps: (Some(Tap::FinalNorm), Some(Tap::FinalNorm)),
    })
}

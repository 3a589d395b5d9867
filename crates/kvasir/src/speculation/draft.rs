//! `--spec draft`: a smaller model with the same tokenizer.

use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::model_files::ModelFiles;
use crate::speculation::method::{DraftMethod, DraftTarget, Proposer};
use crate::speculation::parameters::{CHAIN, DraftParameters, path_and_numbers};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_kv::Token;
use kvasir_plain::DraftSource;
use kvasir_program::Model;
use kvasir_sim::{Preset, Shape};

pub(super) const DRAFT: DraftMethod = DraftMethod {
    name: "draft",
    syntax: ":MODEL[,depth=]",
    summary: "a smaller model with the same tokenizer",
    parse: |text| {
        let (path, numbers) = path_and_numbers(text, &["depth"])?;
        let depth = numbers.get("depth");
        let shape = TreeShape::chain(depth.unwrap_or(CHAIN));
        Ok(DraftParameters { model: Some(path), ..DraftParameters::new(shape, depth) })
    },
    proposer: Proposer::Model { open, shape },
};

fn shape(_: Shape, parameters: &DraftParameters) -> Result<Shape, String> {
    let name = parameters.path().to_string_lossy();
    match Preset::parse_model(&name)? {
        (shape, None) => Ok(shape),
        _ => Err(format!(
            "`{name}` names a weight type, but the draft model has the target's: give the shape alone"
        )),
    }
}

fn open(target: DraftTarget<'_>, parameters: &DraftParameters) -> Result<OpenedDraft, Error> {
    let path = parameters.path();
    let refused = |why: String| Error::invalid("speculation", format!("draft:{}: {why}", path.display()));
    let (checkpoint, model) = ModelFiles::locate(path)?.programs()?;
    let (own, its) = (target.model.target.vocab, model.target.vocab);
    if let (Some(ours), Some(theirs)) = (target.checkpoint.tokenizer()?, checkpoint.tokenizer()?) {
        let differs = (0..own.max(its) as Token).find(|id| ours.bytes(*id) != theirs.bytes(*id));
        if let Some(id) = differs {
            return Err(refused(format!("its tokenizer is another one: token {id} differs")));
        }
    } else if own != its {
        return Err(refused(format!("its vocabulary has {its} tokens, that of the model {own}")));
    }
    Ok(OpenedDraft {
        checkpoint,
        model: Model { target: model.target, predictions: Vec::new() },
        source: DraftSource::Target,
        kind: DraftModelKind::default(),
        shape: parameters.shape,
        taps: (None, None),
    })
}

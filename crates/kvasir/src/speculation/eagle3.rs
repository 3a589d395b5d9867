//! `--spec eagle3`: an EAGLE-3 head in a directory or on the hub, or that of the built-in model. Its
//! projection of features becomes part of the target.

use crate::built_in;
use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::hub::HubName;
use crate::speculation::method::{DraftMethod, DraftTarget, Proposer};
use crate::speculation::parameters::{CHAIN, DraftParameters, Numbers, path_and_numbers};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_formats::Checkpoint;
use kvasir_kv::Token;
use kvasir_plain::DraftSource;
use kvasir_program::{Eagle3, Model, Program, Tap};
use kvasir_sim::Shape;

/// Default size of trees on a CPU, where the target verifies few tokens for free.
const TREE: TreeShape = TreeShape { depth: 5, top_k: 4, nodes: 12 };
/// Default size of the built-in model's: so small a target runs as fast as its head drafts the
/// branches of a tree.
const BUILT_IN_TREE: TreeShape = TreeShape { depth: CHAIN, top_k: 1, nodes: TREE.nodes };
const KEYS: [&str; 3] = ["depth", "topk", "nodes"];

pub(super) const EAGLE3: DraftMethod = DraftMethod {
    name: "eagle3",
    syntax: ":DIR[,depth=,topk=,nodes=]",
    summary: "an EAGLE-3 draft head; without DIR, that of the built-in model",
    parse: |text| {
        let is_number = |key: &&str| text.strip_prefix(key).is_some_and(|end| end.starts_with('='));
        let (model, numbers, usual) = if text.is_empty() || KEYS.iter().any(is_number) {
            (None, Numbers::parse(text, &KEYS)?, BUILT_IN_TREE)
        } else {
            let (path, numbers) = path_and_numbers(text, &KEYS)?;
            (Some(path), numbers, TREE)
        };
        let depth = numbers.get("depth");
        let shape = TreeShape {
            depth: depth.unwrap_or(usual.depth),
            top_k: numbers.get("topk").unwrap_or(usual.top_k),
            nodes: numbers.get("nodes").unwrap_or(usual.nodes),
        };
        Ok(DraftParameters { model, ..DraftParameters::new(shape, depth) })
    },
    proposer: Proposer::Model { open, shape },
};

/// One layer, with a vocabulary of the 32,000 most frequent tokens.
fn shape(target: Shape, parameters: &DraftParameters) -> Result<Shape, String> {
    if parameters.model.is_some() {
        return Err("a simulated head has no files: give eagle3".into());
    }
    Ok(Shape { name: "eagle3", layers: 1, vocabulary: target.vocabulary.min(32_000), ..target })
}

fn open(target: DraftTarget<'_>, parameters: &DraftParameters) -> Result<OpenedDraft, Error> {
    let dir = parameters.model.as_deref();
    let place = dir.map_or(String::new(), |dir| format!(":{}", dir.display()));
    let named =
        |error: &dyn std::fmt::Display| Error::invalid("speculation", format!("eagle3{place}: {error}"));
    let checkpoint = match dir {
        Some(dir) => Checkpoint::open(&HubName::locate(dir).map_err(|error| named(&error))?),
        None if target.is_built_in => built_in::eagle3(),
        None => {
            let why =
                "only the built-in model has a head of its own; name one as eagle3:DIR or eagle3:OWNER/NAME";
            return Err(named(&why));
        }
    };
    let mut checkpoint = checkpoint.map_err(|error| named(&error))?;
    checkpoint.borrow_tensor("embed_tokens.weight", target.checkpoint, "model.embed_tokens.weight")?;
    let head = Eagle3::build(&checkpoint.source(), &target.model.target).map_err(|error| named(&error))?;
    let offsets = checkpoint.integers("d2t").map_err(|error| named(&error))?;
    let to_target = offsets.map(|offsets| to_target(&offsets, &head, &target.model.target)).transpose();
    let to_target = to_target.map_err(|error| named(&error))?;
    if to_target.is_none() && head.vocab != target.model.target.vocab {
        return Err(named(&"has a vocabulary of its own and no tensor d2t"));
    }
    target.checkpoint.borrow_tensor(Program::FEATURES, &checkpoint, "fc.weight")?;
    let with_features = target.model.target.with_features(head.layers, head.program.hidden);
    target.model.target = with_features.map_err(|error| named(&error))?;
    Ok(OpenedDraft {
        kind: DraftModelKind { hidden: head.program.hidden, to_target, ..DraftModelKind::default() },
        checkpoint,
        model: Model { target: head.program, predictions: Vec::new() },
        source: DraftSource::Target,
        shape: parameters.shape,
        taps: (Some(Tap::Features), Some(Tap::OutOfLastLayer)),
    })
}

/// Ids of the target by those of the head: `id + d2t[id]`.
fn to_target(offsets: &[i64], head: &Eagle3, target: &Program) -> Result<Vec<Token>, String> {
    if offsets.len() != head.vocab {
        return Err(format!("d2t has {} entries, the head proposes {} tokens", offsets.len(), head.vocab));
    }
    let one = |(id, offset): (i64, &i64)| match id.checked_add(*offset) {
        Some(to) if (0..target.vocab as i64).contains(&to) => Ok(to as Token),
        _ => Err(format!("d2t leads from {id} beyond the vocabulary")),
    };
    (0..).zip(offsets).map(one).collect()
}

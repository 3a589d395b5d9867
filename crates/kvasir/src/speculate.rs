//! Opens the draft model that a target is to have, and checks it against the target.

use crate::built_in;
use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::hub::HubName;
use crate::opened::OpenedModel;
use crate::speculation::{DraftMethod, Speculation};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_formats::Checkpoint;
use kvasir_kv::Token;
use kvasir_plain::DraftSource;
use kvasir_program::{Eagle3, Model, Program, Tap};
use std::{collections::HashSet, path::Path};

impl OpenedModel {
    /// Prepares the draft model that `speculation` wants, if it wants one: opens it, checks it
    /// against this model, and adds what it takes to this model's program.
    pub fn speculate(mut self, speculation: &Speculation) -> Result<Self, Error> {
        let shape = speculation.shape;
        self.draft = match &speculation.method {
            DraftMethod::Ngram { .. } | DraftMethod::Suffix => None,
            DraftMethod::Mtp => Some(self.own_layer(shape)?),
            DraftMethod::Eagle3(dir) => Some(self.head(dir.as_deref(), shape)?),
            DraftMethod::Model(path) => Some(self.smaller_model(path, shape)?),
        };
        if let Some(draft) = &mut self.draft {
            draft.kind.acceptance = speculation.acceptance;
            draft.kind.target_vocab = self.model.target.vocab;
        }
        self.speculation = Some(speculation.clone());
        Ok(self)
    }

    /// Program and weights of the draft model, if [`speculate`](Self::speculate) prepared one.
    pub fn draft(&self) -> Option<(&Program, &Checkpoint)> {
        self.draft.as_ref().map(|draft| (draft.program(), &draft.checkpoint))
    }

    /// Bytes of all weights as stored, with those of the draft model. Shared tensors count once.
    pub fn stored_bytes(&self) -> u64 {
        let drafts = self.draft.iter().flat_map(|draft| draft.checkpoint.tensors());
        let places = self.checkpoint.tensors().chain(drafts).map(|tensor| tensor.bytes.as_ptr_range());
        let distinct: HashSet<_> = places.collect();
        distinct.iter().map(|place| place.end as u64 - place.start as u64).sum()
    }

    /// The model's own multi-token-prediction layer. That of the built-in model is a file apart.
    ///
    /// A single layer is chained. Of several, each is trained for one level and continues from the
    /// states of the one before, so only the first level can be drafted.
    fn own_layer(&self, shape: TreeShape) -> Result<OpenedDraft, Error> {
        let named = |error: &dyn std::fmt::Display| Error::invalid("speculation", format!("mtp: {error}"));
        let (mut checkpoint, mut model) = (self.checkpoint.clone(), self.model.clone());
        if self.is_built_in {
            checkpoint.add_predictions(&built_in::mtp()?);
            model = Model::build(&checkpoint.source()).map_err(|error| named(&error))?;
        }
        match model.predictions.len() {
            0 => return Err(named(&"the model has no multi-token-prediction layer")),
            several @ 2.. if shape.depth > 1 => {
                let why = "only the first can draft: use `mtp:1`";
                return Err(named(&format!(
                    "the model has {several} prediction layers, one per draft; {why}"
                )));
            }
            _ => {}
        }
        let kind = DraftModelKind { hidden: self.model.target.hidden, ..DraftModelKind::default() };
        Ok(OpenedDraft {
            checkpoint,
            model,
            source: DraftSource::Prediction,
            kind,
            shape,
            taps: (Some(Tap::FinalNorm), Some(Tap::FinalNorm)),
        })
    }

    /// An EAGLE-3 head in a directory or on the hub, or that of the built-in model. Its projection of
    /// features becomes part of the target.
    fn head(&mut self, dir: Option<&Path>, shape: TreeShape) -> Result<OpenedDraft, Error> {
        let place = dir.map_or(String::new(), |dir| format!(":{}", dir.display()));
        let named =
            |error: &dyn std::fmt::Display| Error::invalid("speculation", format!("eagle3{place}: {error}"));
        let checkpoint = match dir {
            Some(dir) => Checkpoint::open(&HubName::locate(dir).map_err(|error| named(&error))?),
            None if self.is_built_in => built_in::eagle3(),
            None => {
                let why = "only the built-in model has a head of its own; name one as eagle3:DIR or eagle3:OWNER/NAME";
                return Err(named(&why));
            }
        };
        let mut checkpoint = checkpoint.map_err(|error| named(&error))?;
        checkpoint.borrow_tensor("embed_tokens.weight", &self.checkpoint, "model.embed_tokens.weight")?;
        let head = Eagle3::build(&checkpoint.source(), &self.model.target).map_err(|error| named(&error))?;
        let offsets = checkpoint.integers("d2t").map_err(|error| named(&error))?;
        let to_target = offsets.map(|offsets| to_target(&offsets, &head, &self.model.target)).transpose();
        let to_target = to_target.map_err(|error| named(&error))?;
        if to_target.is_none() && head.vocab != self.model.target.vocab {
            return Err(named(&"has a vocabulary of its own and no tensor d2t"));
        }
        self.checkpoint.borrow_tensor(Program::FEATURES, &checkpoint, "fc.weight")?;
        let target = self.model.target.with_features(head.layers, head.program.hidden);
        self.model.target = target.map_err(|error| named(&error))?;
        Ok(OpenedDraft {
            kind: DraftModelKind { hidden: head.program.hidden, to_target, ..DraftModelKind::default() },
            checkpoint,
            model: Model { target: head.program, predictions: Vec::new() },
            source: DraftSource::Target,
            shape,
            taps: (Some(Tap::Features), Some(Tap::OutOfLastLayer)),
        })
    }

    /// A smaller model with the same tokenizer.
    fn smaller_model(&self, path: &Path, shape: TreeShape) -> Result<OpenedDraft, Error> {
        let refused = |why: String| Error::invalid("speculation", format!("draft:{}: {why}", path.display()));
        let opened = Self::find(path)?;
        let (own, its) = (self.model.target.vocab, opened.model.target.vocab);
        if let (Some(ours), Some(theirs)) = (self.tokenizer()?, opened.tokenizer()?) {
            let differs = (0..own.max(its) as Token).find(|id| ours.bytes(*id) != theirs.bytes(*id));
            if let Some(id) = differs {
                return Err(refused(format!("its tokenizer is another one: token {id} differs")));
            }
        } else if own != its {
            return Err(refused(format!("its vocabulary has {its} tokens, that of the model {own}")));
        }
        Ok(OpenedDraft {
            checkpoint: opened.checkpoint,
            model: Model { target: opened.model.target, predictions: Vec::new() },
            source: DraftSource::Target,
            kind: DraftModelKind::default(),
            shape,
            taps: (None, None),
        })
    }
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

//! `--spec`: which drafter proposes tokens for speculative decoding.
//!
//! [`DRAFT_METHODS`] is the only list of methods: each is a [`DraftMethod`] in a file of its own, which
//! reads its parameters and makes a drafter on the host or opens a draft model. `--spec`, its help,
//! `kvasir bench spec` and the errors follow from it.

pub(crate) mod draft;
pub(crate) mod eagle3;
pub(crate) mod method;
pub(crate) mod mtp;
pub(crate) mod ngram;
pub(crate) mod parameters;
pub(crate) mod suffix;

use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::speculation::method::{DraftMethod, DraftTarget, Proposer};
use crate::speculation::parameters::DraftParameters;
use kvasir_engine::{ConfigError, Drafter};
use kvasir_sample::Acceptance;
use kvasir_sim::Shape;
use std::{fmt, str::FromStr};

/// All ways to propose tokens.
pub static DRAFT_METHODS: [DraftMethod; 5] =
    [ngram::NGRAM_METHOD, suffix::SUFFIX_METHOD, mtp::MTP, eagle3::EAGLE3, draft::DRAFT];

/// Speculative decoding: the method, and how much is proposed.
///
/// As text: the name of one of [`DRAFT_METHODS`] and its parameters, such as `ngram:n=2` or
/// `draft:MODEL,depth=3`. With `K` or `depth` the number of drafts is fixed; without, it follows from
/// what pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// The method.
    pub method: &'static DraftMethod,
    /// Its parameters.
    pub parameters: DraftParameters,
    /// How drafts of a draft model are accepted; not part of the text. Drafts made on the host are not
    /// drawn at random, and both ways are the same for them.
    pub acceptance: Acceptance,
}

impl Speculation {
    /// Name of the method.
    pub fn name(&self) -> &'static str {
        self.method.name
    }

    /// Whether a draft model runs in the executor.
    pub fn needs_model(&self) -> bool {
        matches!(self.method.proposer, Proposer::Model { .. })
    }

    /// The drafter that runs on the host; `None` if a draft model proposes.
    pub fn drafter(&self) -> Option<Box<dyn Drafter>> {
        match self.method.proposer {
            Proposer::Host(drafter) => Some(drafter(&self.parameters)),
            Proposer::Model { .. } => None,
        }
    }

    /// Opens the draft model, checks it against its target, and adds what it takes to the target's
    /// program; `None` if a drafter on the host proposes.
    pub(crate) fn open(&self, target: DraftTarget<'_>) -> Result<Option<OpenedDraft>, Error> {
        let Proposer::Model { open, .. } = self.method.proposer else { return Ok(None) };
        let target_vocab = target.model.target.vocab;
        let mut draft = open(target, &self.parameters)?;
        draft.kind.acceptance = self.acceptance;
        draft.kind.target_vocab = target_vocab;
        Ok(Some(draft))
    }

    /// Shape of the draft model behind a simulated target; `None` if a drafter on the host proposes.
    pub fn simulated_shape(&self, target: Shape) -> Option<Result<Shape, String>> {
        match self.method.proposer {
            Proposer::Host(_) => None,
            Proposer::Model { shape, .. } => Some(shape(target, &self.parameters)),
        }
    }

    /// Whether proposals are trees, which not every cache takes.
    pub fn proposes_trees(&self) -> bool {
        self.parameters.shape.top_k > 1
    }

    /// Refuses what cannot be combined with a backend, by name.
    pub(crate) fn check_backend(&self, backend: &str) -> Result<(), Error> {
        match backend {
            "sim" => {
                let reason = "the simulated device outputs arbitrary tokens, which nothing can propose";
                Err(ConfigError::conflict(("speculation", self), ("backend", &backend), reason).into())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Speculation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let method = DRAFT_METHODS.iter().find(|method| method.name == name).ok_or_else(|| {
            let known: Vec<_> = DRAFT_METHODS.iter().map(|m| format!("{}{}", m.name, m.syntax)).collect();
            format!("`{name}` is no draft method: give one of {}", known.join(", "))
        })?;
        if parameters.is_empty() && text != name {
            return Err(format!("`{text}`: no parameter after the colon: add one or drop the colon"));
        }
        let parameters = (method.parse)(parameters).map_err(|reason| format!("{name}: {reason}"))?;
        Ok(Self { method, parameters, acceptance: Acceptance::Coupled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_draft::TreeShape;
    use kvasir_engine::DraftWidth;

    fn parsed(text: &str) -> DraftParameters {
        text.parse::<Speculation>().unwrap().parameters
    }

    #[test]
    fn methods_are_read_with_their_numbers() {
        assert_eq!((parsed("ngram").n, parsed("ngram:n=5").n), (3, 5));
        assert_eq!(parsed("ngram:n=5,tokens=8").shape, TreeShape::chain(8));
        assert_eq!(parsed("suffix").width, DraftWidth::Adaptive);
        assert_eq!((parsed("mtp").shape.depth, parsed("mtp:3").shape.depth), (4, 3));
        assert_eq!(parsed("mtp:3").width, DraftWidth::Fixed);
        let suffix = parsed("suffix:depth=4");
        assert_eq!((suffix.shape.depth, suffix.width), (4, DraftWidth::Fixed));
        assert_eq!(parsed("ngram:n=2,tokens=4").width, DraftWidth::Adaptive);
        let head = parsed("eagle3:a,b/draft,depth=3,topk=2,nodes=6");
        assert_eq!(head.model, Some("a,b/draft".into()));
        assert_eq!(head.shape, TreeShape { depth: 3, top_k: 2, nodes: 6 });
        assert_eq!(head.width, DraftWidth::Fixed);
        let hub = parsed("eagle3:acme/head@refs/pr/1,depth=3");
        assert_eq!(hub.model, Some("acme/head@refs/pr/1".into()));
        assert_eq!(parsed("eagle3").model, None);
        assert_eq!(parsed("eagle3:topk=1,depth=3").shape, TreeShape { depth: 3, top_k: 1, nodes: 12 });
        assert_eq!(parsed("draft:tiny.gguf").model, Some("tiny.gguf".into()));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, names) in [
            ("magic", "magic"),
            ("eagle3:", "eagle3:"),
            ("draft", "PATH"),
            ("eagle3:depth=3,magic=1", "magic is none of"),
            ("eagle3:x,depth=0", "depth"),
            ("ngram:m=3", "m is none of"),
            ("mtp:0", "mtp: `0` is not K"),
            ("suffix:16", "key=value"),
        ] {
            let error = text.parse::<Speculation>().unwrap_err();
            assert!(error.contains(names), "{text}: {error}");
        }
    }
}

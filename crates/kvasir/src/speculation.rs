//! `--spec`: which drafter proposes tokens for speculative decoding.

use crate::error::Error;
use kvasir_draft::TreeShape;
use kvasir_engine::{ConfigError, DraftWidth, MOST_DRAFTS, NGRAM};
use kvasir_sample::Acceptance;
use std::{fmt, path::PathBuf, str::FromStr};

/// How tokens are proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftMethod {
    /// What followed the last `n` tokens earlier in prompt and output.
    Ngram {
        /// Tokens that are looked up.
        n: u32,
    },
    /// What most often followed the longest suffix that occurred before.
    Suffix,
    /// The target's own multi-token-prediction layer, chained. Of several layers only the first drafts.
    Mtp,
    /// An EAGLE-3 draft head in a directory or on the hub; `None` for that of the built-in model.
    Eagle3(Option<PathBuf>),
    /// A smaller model with the same tokenizer.
    Model(PathBuf),
}

/// Speculative decoding: the method, and how much is proposed.
///
/// As text: `ngram[:n=3,tokens=16,depth=]`, `suffix[:tokens=16,depth=]`, `mtp[:K]`,
/// `eagle3:DIR[,depth=,topk=,nodes=]` or `draft:MODEL[,depth=]`. DIR and MODEL may be hub names. The
/// built-in model has an EAGLE-3 head: `eagle3[:depth=,topk=,nodes=]`.
/// With `K` or `depth` the number of drafts is fixed; without, it follows from what pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// The method.
    pub method: DraftMethod,
    /// Size of the trees; a chain for all methods but EAGLE-3.
    pub shape: TreeShape,
    /// How the number of drafts of a step is chosen.
    pub width: DraftWidth,
    /// How drafts of a draft model are accepted; not part of the text. Drafts of `ngram` and `suffix`
    /// are not drawn at random, and both ways are the same for them.
    pub acceptance: Acceptance,
}

/// Default size of EAGLE-3 trees on a CPU, where the target verifies few tokens for free.
const EAGLE3: TreeShape = TreeShape { depth: 5, top_k: 4, nodes: 12 };
/// Default size of the built-in model's: so small a target runs as fast as its head drafts the
/// branches of a tree.
const BUILT_IN_EAGLE3: TreeShape = TreeShape { depth: CHAIN, top_k: 1, nodes: EAGLE3.nodes };
/// Default length of chains of draft models.
const CHAIN: u32 = 4;
/// Bounds of the numbers.
const MOST_NODES: u32 = 256;

impl Speculation {
    /// Name of the method.
    pub fn name(&self) -> &'static str {
        match self.method {
            DraftMethod::Ngram { .. } => "ngram",
            DraftMethod::Suffix => "suffix",
            DraftMethod::Mtp => "mtp",
            DraftMethod::Eagle3(_) => "eagle3",
            DraftMethod::Model(_) => "draft",
        }
    }

    /// Whether a draft model runs in the executor.
    pub fn needs_model(&self) -> bool {
        !matches!(self.method, DraftMethod::Ngram { .. } | DraftMethod::Suffix)
    }

    /// Whether proposals are trees, which not every cache takes.
    pub fn proposes_trees(&self) -> bool {
        self.shape.top_k > 1
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number of `key=value` pairs behind a method.
fn numbers<'a>(parts: impl Iterator<Item = &'a str>, known: &[&str]) -> Result<Vec<(&'a str, u32)>, String> {
    let one = |part: &'a str| {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part} is no key=value"))?;
        if !known.contains(&key) {
            return Err(format!("{key} is none of {}", known.join(", ")));
        }
        match value.parse::<u32>() {
            Ok(number @ 1..=MOST_NODES) => Ok((key, number)),
            _ => Err(format!("{key}={value} is not a number from 1 to {MOST_NODES}")),
        }
    };
    parts.filter(|part| !part.is_empty()).map(one).collect()
}

impl FromStr for Speculation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let given = |pairs: &[(&str, u32)], key: &str| pairs.iter().find(|(k, _)| *k == key).map(|(_, n)| *n);
        let with = |method, shape, width| Self { method, shape, width, acceptance: Acceptance::Coupled };
        let width = |depth: Option<u32>| depth.map_or(DraftWidth::Adaptive, |_| DraftWidth::Fixed);
        let adaptive = |method, shape| with(method, shape, DraftWidth::Adaptive);
        // A path may contain commas: what comes before the first known key is the path.
        let path = |known: &[&str]| {
            let keys = known.iter().filter_map(|key| rest.find(&format!(",{key}=")));
            let end = keys.min().unwrap_or(rest.len());
            match &rest[..end] {
                "" => Err(format!("{name} needs a path: {name}:PATH")),
                path => Ok((PathBuf::from(path), numbers(rest[end..].split(','), known)?)),
            }
        };
        match name {
            "ngram" | "suffix" => {
                let (known, suffix) = (["tokens", "depth", "n"], name == "suffix");
                let pairs = numbers(rest.split(','), if suffix { &known[..2] } else { &known })?;
                let n = given(&pairs, "n").unwrap_or(NGRAM as u32);
                let method = if suffix { DraftMethod::Suffix } else { DraftMethod::Ngram { n } };
                let depth = given(&pairs, "depth");
                let tokens = depth.or(given(&pairs, "tokens")).unwrap_or(MOST_DRAFTS);
                Ok(with(method, TreeShape::chain(tokens), width(depth)))
            }
            "mtp" if rest.is_empty() => Ok(adaptive(DraftMethod::Mtp, TreeShape::chain(CHAIN))),
            "mtp" => match rest.parse::<u32>() {
                Ok(k @ 1..=16) => Ok(with(DraftMethod::Mtp, TreeShape::chain(k), DraftWidth::Fixed)),
                _ => Err(format!("mtp:{rest} is not mtp:K with K from 1 to 16")),
            },
            "eagle3" => {
                let known = ["depth", "topk", "nodes"];
                let is_number =
                    known.iter().any(|key| rest.strip_prefix(key).is_some_and(|end| end.starts_with('=')));
                let (path, pairs) = if is_number || text == name {
                    (None, numbers(rest.split(','), &known)?)
                } else {
                    let (path, pairs) = path(&known)?;
                    (Some(path), pairs)
                };
                let depth = given(&pairs, "depth");
                let usual = if path.is_some() { EAGLE3 } else { BUILT_IN_EAGLE3 };
                let shape = TreeShape {
                    depth: depth.unwrap_or(usual.depth),
                    top_k: given(&pairs, "topk").unwrap_or(usual.top_k),
                    nodes: given(&pairs, "nodes").unwrap_or(usual.nodes),
                };
                Ok(with(DraftMethod::Eagle3(path), shape, width(depth)))
            }
            "draft" => {
                let (path, pairs) = path(&["depth"])?;
                let depth = given(&pairs, "depth");
                let shape = TreeShape::chain(depth.unwrap_or(CHAIN));
                Ok(with(DraftMethod::Model(path), shape, width(depth)))
            }
            _ => Err(format!("{name} is none of ngram, suffix, mtp, eagle3[:DIR], draft:MODEL")),
        }
    }
}

impl Speculation {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Speculation {
        text.parse().unwrap()
    }

    #[test]
    fn methods_are_read_with_their_numbers() {
        assert_eq!(parsed("ngram").method, DraftMethod::Ngram { n: 3 });
        assert_eq!(parsed("ngram:n=5,tokens=8").shape, TreeShape::chain(8));
        assert_eq!(parsed("suffix").width, DraftWidth::Adaptive);
        assert_eq!((parsed("mtp").shape.depth, parsed("mtp:3").shape.depth), (4, 3));
        assert_eq!(parsed("mtp:3").width, DraftWidth::Fixed);
        let suffix = parsed("suffix:depth=4");
        assert_eq!((suffix.shape.depth, suffix.width), (4, DraftWidth::Fixed));
        assert_eq!(parsed("ngram:n=2,tokens=4").width, DraftWidth::Adaptive);
        let head = parsed("eagle3:a,b/draft,depth=3,topk=2,nodes=6");
        assert_eq!(head.method, DraftMethod::Eagle3(Some("a,b/draft".into())));
        assert_eq!(head.shape, TreeShape { depth: 3, top_k: 2, nodes: 6 });
        assert_eq!(head.width, DraftWidth::Fixed);
        let hub = parsed("eagle3:acme/head@refs/pr/1,depth=3");
        assert_eq!(hub.method, DraftMethod::Eagle3(Some("acme/head@refs/pr/1".into())));
        assert_eq!(parsed("eagle3").method, DraftMethod::Eagle3(None));
        assert_eq!(parsed("eagle3:topk=1,depth=3").shape, TreeShape { depth: 3, top_k: 1, nodes: 12 });
        assert_eq!(parsed("draft:tiny.gguf").method, DraftMethod::Model("tiny.gguf".into()));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, names) in [
            ("magic", "magic"),
            ("eagle3:", "PATH"),
            ("eagle3:depth=3,magic=1", "magic is none of"),
            ("eagle3:x,depth=0", "depth"),
            ("ngram:m=3", "m is none of"),
            ("mtp:0", "mtp:0"),
            ("suffix:16", "key=value"),
        ] {
            let error = text.parse::<Speculation>().unwrap_err();
            assert!(error.contains(names), "{text}: {error}");
        }
    }
}

//! Parameters of a draft method, and their text behind its name: `n=3,tokens=16`, `DIR,depth=4`.

use kvasir_draft::TreeShape;
use kvasir_engine::DraftWidth;
use std::path::{Path, PathBuf};

/// Default length of chains of draft models.
pub(super) const CHAIN: u32 = 4;
/// Largest value of a number.
const MOST_NODES: u32 = 256;

/// Parameters of a draft method.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DraftParameters {
    /// Path or hub name of the draft model, for methods that take one.
    pub model: Option<PathBuf>,
    /// Tokens that an n-gram drafter looks up; 0 for other methods.
    pub n: u32,
    /// Size of the trees; a chain for all methods but EAGLE-3.
    pub shape: TreeShape,
    /// How the number of drafts of a step is chosen.
    pub width: DraftWidth,
}

impl DraftParameters {
    /// Parameters of a method without a model file. A given `depth` fixes the number of drafts.
    pub(super) fn new(shape: TreeShape, depth: Option<u32>) -> Self {
        let width = depth.map_or(DraftWidth::Adaptive, |_| DraftWidth::Fixed);
        Self { model: None, n: 0, shape, width }
    }

    /// The path of a method that always takes one.
    pub(super) fn path(&self) -> &Path {
        self.model.as_deref().unwrap_or(Path::new(""))
    }
}

/// The numbers behind a method's name.
pub(super) struct Numbers<'a>(Vec<(&'a str, u32)>);

impl<'a> Numbers<'a> {
    /// Reads comma-separated `key=value` pairs with keys out of `known`.
    pub(super) fn parse(text: &'a str, known: &[&str]) -> Result<Self, String> {
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
        text.split(',').filter(|part| !part.is_empty()).map(one).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn get(&self, key: &str) -> Option<u32> {
        self.0.iter().find(|(k, _)| *k == key).map(|(_, number)| *number)
    }
}

/// Splits `PATH[,key=value...]`. A path may contain commas: it ends before the first known key.
pub(super) fn path_and_numbers<'a>(text: &'a str, known: &[&str]) -> Result<(PathBuf, Numbers<'a>), String> {
    let keys = known.iter().filter_map(|key| text.find(&format!(",{key}=")));
    let (path, numbers) = text.split_at(keys.min().unwrap_or(text.len()));
    if path.is_empty() {
        return Err("no model given: add its PATH or hub name after the colon".into());
    }
    Ok((PathBuf::from(path), Numbers::parse(numbers, known)?))
}

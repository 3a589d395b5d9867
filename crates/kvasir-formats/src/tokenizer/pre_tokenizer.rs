//! Pre-tokenizer of a `tokenizer.json`: the library's steps, with Oniguruma expressions translated
//! first.
//!
//! Steps run one by one, so that a canceled tokenization ends at the next step, piece or match.

use crate::tokenizer::cancel::{CANCELED_TEXT, is_canceled};
use crate::tokenizer::oniguruma;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value as Json;
use tokenizers::{
    Offsets, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, pre_tokenizers::split::Split,
    tokenizer::pattern::Pattern, utils::SysRegex,
};

/// A pre-tokenizer with translated expressions.
#[derive(Debug)]
pub(super) struct TranslatedPreTokenizer(pub(super) PreTokenizerWrapper);

impl PreTokenizer for TranslatedPreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        run(&self.0, text)
    }
}

fn run(step: &PreTokenizerWrapper, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
    if is_canceled() {
        return Err(CANCELED_TEXT.into());
    }
    match step {
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().try_for_each(|step| run(step, text)),
        PreTokenizerWrapper::Split(Split { regex, behavior, invert: false, .. }) => {
            text.split(|_, piece| piece.split(CancelableRegex(regex), *behavior))
        }
        other => other.pre_tokenize(text),
    }
}

/// The library's regular expression, whose search ends when the tokenization is canceled.
struct CancelableRegex<'a>(&'a SysRegex);

impl Pattern for CancelableRegex<'_> {
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut end = 0;
        let mut splits = Vec::new();
        for (start, next) in self.0.find_iter(text) {
            if is_canceled() {
                return Err(CANCELED_TEXT.into());
            }
            if end != start {
                splits.push(((end, start), false));
            }
            splits.push(((start, next), true));
            end = next;
        }
        if end != text.len() {
            splits.push(((end, text.len()), false));
        }
        Ok(splits)
    }
}

impl<'de> Deserialize<'de> for TranslatedPreTokenizer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut json = Json::deserialize(from)?;
        let failed = |why: String| D::Error::custom(format!("pre_tokenizer: {why}"));
        oniguruma::translate(&mut json).map_err(failed)?;
        serde_json::from_value(json).map(Self).map_err(|why| failed(why.to_string()))
    }
}

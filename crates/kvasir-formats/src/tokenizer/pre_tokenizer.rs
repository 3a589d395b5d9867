//! Pre-tokenizer of a `tokenizer.json`: the library's steps, with Oniguruma expressions translated
//! first.

use crate::tokenizer::oniguruma;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value as Json;
use tokenizers::{PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

/// A pre-tokenizer with translated expressions.
#[derive(Debug)]
pub(super) struct TranslatedPreTokenizer(pub(super) PreTokenizerWrapper);

impl PreTokenizer for TranslatedPreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        self.0.pre_tokenize(text)
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

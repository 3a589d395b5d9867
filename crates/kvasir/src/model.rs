//! A loaded model with its tokenizer, shared via `Arc`.

use crate::error::Error;
use crate::load::LoadedModel;
use crate::prompt::Prompt;
use kvasir_formats::Tokenizer;
use kvasir_kv::Token;
use std::sync::Arc;

/// A loaded model with its tokenizer. Shared via [`Arc`], so the weights exist once.
pub struct Model {
    /// Weights, prepared for a backend.
    pub loaded: LoadedModel,
    /// Tokenizer; `None` if the checkpoint has no vocabulary.
    pub tokenizer: Option<Tokenizer>,
    /// End-of-sequence token ids.
    pub eos: Vec<Token>,
}

impl Model {
    /// Combines a loaded model with its tokenizer.
    pub fn new(loaded: LoadedModel) -> Result<Arc<Self>, Error> {
        let (tokenizer, eos) = (loaded.opened.tokenizer()?, loaded.opened.eos());
        Ok(Arc::new(Self { loaded, tokenizer, eos }))
    }

    /// Tokenizes a prompt. `begins`: it starts a sequence, so special tokens may be added.
    pub fn ids(&self, prompt: Prompt, begins: bool) -> Result<Vec<Token>, Error> {
        let text = match prompt {
            Prompt::Ids(ids) => return Ok(ids),
            Prompt::Text(text) => text,
        };
        let none = || Error::invalid("prompt", "is a text, and the model has no tokenizer; give token ids");
        let tokenizer = self.tokenizer.as_ref().ok_or_else(none)?;
        Ok(tokenizer.encode(&text, begins)?)
    }

    /// Detokenizes ids without special tokens; `None` without a tokenizer.
    pub fn text(&self, ids: &[Token]) -> Option<String> {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.decode(ids, true).ok())
    }
}

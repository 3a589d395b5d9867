//! A loaded model with its tokenizer, shared via `Arc`.

use crate::error::Error;
use crate::load::LoadedModel;
use crate::prompt::Prompt;
use kvasir_chat::{ChatModel, Shape, VocabularyFacts};
use kvasir_engine::Params;
use kvasir_formats::Tokenizer;
use kvasir_kv::Token;
use kvasir_sample::Constrained;
use std::sync::{Arc, OnceLock};

/// A loaded model with its tokenizer. Shared via [`Arc`], so the weights exist once.
pub struct Model {
    /// Weights, prepared for a backend.
    pub loaded: LoadedModel,
    /// Tokenizer; `None` if the checkpoint has no vocabulary.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// End-of-sequence token ids.
    pub eos: Vec<Token>,
    /// Chat template and dialects, loaded on first use: text completion does not need them.
    chat: OnceLock<Result<ChatModel, String>>,
}

impl Model {
    /// Combines a loaded model with its tokenizer.
    pub fn new(loaded: LoadedModel) -> Result<Arc<Self>, Error> {
        let (tokenizer, eos) = (loaded.opened.tokenizer()?.map(Arc::new), loaded.opened.eos());
        Ok(Arc::new(Self { loaded, tokenizer, eos, chat: OnceLock::new() }))
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

    /// The model's chat template, dialects and compiled grammars; loads them at the first call.
    pub fn chat(&self) -> Result<&ChatModel, Error> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(Error::invalid("model", "has no tokenizer, which chats and structured output need"));
        };
        let load = || -> Result<ChatModel, Error> {
            let facts = VocabularyFacts {
                size: u32::try_from(self.loaded.program().vocab).unwrap_or(u32::MAX),
                eos: self.eos.clone(),
                has_logits: self.loaded.tells_hidden(),
            };
            Ok(ChatModel::new(&self.loaded.opened.text_files()?, tokenizer.clone(), facts)?)
        };
        let chat = self.chat.get_or_init(|| load().map_err(|error| error.to_string()));
        chat.as_ref().map_err(|why| Error::invalid("model", why))
    }

    /// Compiles the shape of an answer to a constraint, for [`Params::constraint`].
    ///
    /// ```
    /// use kvasir::{Kvasir, Options, Params, Shape};
    /// # fn main() -> Result<(), kvasir::Error> {
    /// let mut kvasir = Kvasir::built_in(Options::default())?;
    /// let constraint = kvasir.model().constraint(&Shape::Regex("[0-9]{3}".into()))?;
    /// let answer = kvasir.generate("2 + 2 =", &Params { constraint, ..Params::default() })?;
    /// assert_eq!(answer.text.map(|text| text.len()), Some(3));
    /// # Ok(()) }
    /// ```
    pub fn constraint(&self, shape: &Shape) -> Result<Constrained, Error> {
        let chat = self.chat()?;
        chat.require_logits("structured output")?;
        chat.compile(shape, &[], &Arc::default()).map_err(|why| Error::invalid("shape", why))
    }

    /// Limits and sampling that the model's `generation_config.json` recommends. If it sets no
    /// limit, `max_tokens` is the model's context length.
    pub fn default_params(&self) -> Result<Params, Error> {
        let opened = &self.loaded.opened;
        let max_tokens = opened.max_new_tokens()?.unwrap_or_else(|| self.loaded.max_model_len());
        Ok(Params { max_tokens, sampling: opened.sampling_defaults()?, ..Params::default() })
    }

    /// Detokenizes ids without special tokens; `None` without a tokenizer.
    pub fn text(&self, ids: &[Token]) -> Option<String> {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.decode(ids, true).ok())
    }
}

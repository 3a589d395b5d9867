//! `OpenedModel`: a checkpoint with its programs, before its weights are prepared for a backend.

use crate::built_in;
use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::model_files::ModelFiles;
use crate::speculation::Speculation;
use kvasir_formats::{Checkpoint, TextFiles, Tokenizer, check_kv_facts};
use kvasir_kv::Token;
use kvasir_program::Model;
use kvasir_sim::TokenList;
use serde_json::Value as Json;
use std::{path::Path, sync::Arc};

/// A checkpoint with its programs, validated against each other. Weights are not unpacked yet.
pub struct OpenedModel {
    /// The checkpoint's files.
    pub checkpoint: Checkpoint,
    /// Programs of target and prediction layers.
    pub model: Model,
    /// `generation_config.json` or its equivalent.
    generation: Option<Json>,
    /// Speculative decoding and its draft model; see [`OpenedModel::speculate`].
    pub(crate) speculation: Option<Speculation>,
    pub(crate) draft: Option<OpenedDraft>,
    /// Whether this is the built-in model, which has draft layers of its own.
    pub(crate) is_built_in: bool,
    pub(crate) watch: LoadWatch,
}

/// Receives how far loading is: operations whose weights are ready, of all.
pub(crate) type LoadWatch = Box<dyn Fn(usize, usize) + Send + Sync>;

impl OpenedModel {
    /// Opens a directory in the Hugging Face layout, a GGUF file, a model of the hub by its
    /// [`HubName`](crate::HubName), or the built-in model by its name. An existing path is never treated as a name.
    pub fn find(name: &Path) -> Result<Self, Error> {
        match ModelFiles::locate(name)? {
            ModelFiles::BuiltIn => Self::built_in(),
            ModelFiles::At(path) => Self::open(&path),
        }
    }

    /// Opens a directory in the Hugging Face layout or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::of(Checkpoint::open(path)?)
    }

    /// Opens the built-in model.
    pub fn built_in() -> Result<Self, Error> {
        let opened = Self::of(ModelFiles::BuiltIn.checkpoint()?)?;
        Ok(Self { generation: Some(built_in::generation_config()), is_built_in: true, ..opened })
    }

    /// The model's `generation_config.json`, if any.
    pub fn generation_config(&self) -> Option<&Json> {
        self.generation.as_ref()
    }

    fn of(checkpoint: Checkpoint) -> Result<Self, Error> {
        let path = checkpoint.path();
        let model = Model::build(&checkpoint.source());
        let model = model.map_err(|e| kvasir_formats::Error::at(path.display(), e))?;
        if let Some(gguf) = checkpoint.gguf() {
            check_kv_facts(gguf, &model.target.layers).map_err(|error| error.in_file(path))?;
        }
        let generation = checkpoint.generation_config().cloned();
        let watch: LoadWatch = Box::new(|_, _| {});
        Ok(Self { checkpoint, model, generation, speculation: None, draft: None, is_built_in: false, watch })
    }

    /// Lets `watch` know how far [`load`](Self::load) is on the CPU backend: operations whose weights are
    /// ready, and all of them.
    pub fn watch_load(self, watch: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self { watch: Box::new(watch), ..self }
    }

    /// End-of-sequence token ids: of `generation_config.json`, else of the config.
    pub fn eos(&self) -> Vec<Token> {
        let ids = |config: &Json| {
            let id = |v: &Json| v.as_u64().and_then(|id| Token::try_from(id).ok());
            match config.get("eos_token_id") {
                Some(Json::Array(list)) => list.iter().filter_map(id).collect(),
                one => one.and_then(id).into_iter().collect::<Vec<Token>>(),
            }
        };
        let given = self.generation_config().map(ids).unwrap_or_default();
        if given.is_empty() { ids(self.checkpoint.config()) } else { given }
    }

    /// Tokenizer, chat template and related files.
    pub fn text_files(&self) -> Result<TextFiles, Error> {
        Ok(match self.checkpoint.gguf() {
            Some(gguf) => TextFiles::of_gguf(Arc::clone(gguf)),
            None => TextFiles::open(self.checkpoint.path())?,
        })
    }

    /// The tokenizer; `None` if there is no `tokenizer.json` or GGUF vocabulary.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        let there = match self.checkpoint.gguf() {
            Some(gguf) => gguf.array("tokenizer.ggml.tokens").is_some(),
            None => self.checkpoint.path().join("tokenizer.json").exists(),
        };
        Ok(if there { Some(self.text_files()?.tokenizer()?) } else { None })
    }

    /// Short word tokens, which the simulated device emits.
    pub(crate) fn words(&self) -> Result<TokenList, Error> {
        let Some(tokenizer) = self.tokenizer()? else {
            return Ok(TokenList::new((0..self.model.target.vocab as Token).collect()));
        };
        let eos = self.eos();
        let is_word = |id: &Token| {
            let text = tokenizer.bytes(*id).and_then(|bytes| String::from_utf8(bytes).ok());
            !tokenizer.is_special(*id)
                && !eos.contains(id)
                && text.is_some_and(|text| text.chars().any(char::is_alphanumeric) && text.len() < 12)
        };
        Ok(TokenList::new((0..self.model.target.vocab as Token).filter(is_word).collect()))
    }
}

//! `OpenedModel`: a checkpoint with its programs, before its weights are prepared for a backend.

use crate::built_in;
use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::model_files::ModelFiles;
use crate::speculation::{Speculation, method::DraftTarget};
use kvasir_cpu::PackedFile;
use kvasir_formats::{Checkpoint, DType, TextFiles, Tokenizer};
use kvasir_kv::Token;
use kvasir_program::{Model, Program, Source, Tap};
use kvasir_sim::TokenList;
use serde_json::Value as Json;
use std::{collections::HashSet, path::Path, sync::Arc};
use xxhash_rust::xxh64::xxh64;

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
    /// On ranks other than 0: the activations of the target that the draft model of rank 0 reads.
    pub(crate) draft_tap: Option<Tap>,
    /// Whether this is the built-in model, which has draft layers of its own.
    pub(crate) is_built_in: bool,
    pub(crate) watch: LoadWatch,
    /// Data type of random weights, instead of those of the checkpoint.
    pub(crate) random: Option<DType>,
    /// The file that packed weights are shared in; `None` packs into private memory.
    pub(crate) packed_file: Option<Arc<PackedFile>>,
}

/// A safetensors file without tensors: the length of its header, and the header.
const NO_TENSORS: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

/// Receives how far loading is: operations whose weights are ready, of all.
pub(crate) type LoadWatch = Box<dyn Fn(usize, usize) + Send + Sync>;

impl OpenedModel {
    /// Opens a directory in the Hugging Face layout, a GGUF file, a model of the hub by its
    /// [`HubName`](crate::HubName), or the built-in model by its name. An existing path is never
    /// treated as a name.
    pub fn find(name: &Path) -> Result<Self, Error> {
        Self::of(ModelFiles::locate(name)?)
    }

    /// Opens a directory in the Hugging Face layout or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::of(ModelFiles::At(path.to_owned()))
    }

    /// Opens the built-in model.
    pub fn built_in() -> Result<Self, Error> {
        Self::of(ModelFiles::BuiltIn)
    }

    /// The model's `generation_config.json`, if any.
    pub fn generation_config(&self) -> Option<&Json> {
        self.generation.as_ref()
    }

    fn of(files: ModelFiles) -> Result<Self, Error> {
        let (checkpoint, model) = files.programs()?;
        let is_built_in = files == ModelFiles::BuiltIn;
        let generation = if is_built_in {
            Some(built_in::generation_config())
        } else {
            checkpoint.generation_config().cloned()
        };
        Ok(Self { is_built_in, ..Self::new(checkpoint, model, generation) })
    }

    fn new(checkpoint: Checkpoint, model: Model, generation: Option<Json>) -> Self {
        let watch: LoadWatch = Box::new(|_, _| {});
        Self {
            checkpoint,
            model,
            generation,
            speculation: None,
            draft: None,
            draft_tap: None,
            is_built_in: false,
            watch,
            random: None,
            packed_file: None,
        }
    }

    /// A model of this config with random weights of one data type, for benchmarks of its shape. It
    /// has no tokenizer, and runs on the CPU backend.
    pub fn random(config: &Json, dtype: DType) -> Result<Self, Error> {
        let model = Model::build(&Source::of_config(config.clone()))?;
        let checkpoint = Checkpoint::built_in("random weights", &config.to_string(), NO_TENSORS)?;
        Ok(Self { random: Some(dtype), ..Self::new(checkpoint, model, None) })
    }

    /// Enables speculative decoding: opens the draft model, if the method has one, checks it
    /// against this model, and adds the projection of its features (EAGLE-3) to this model's
    /// program.
    pub fn speculate(mut self, speculation: &Speculation) -> Result<Self, Error> {
        if self.model.target.is_encoder() {
            return Err(Error::invalid(
                "speculation",
                "needs a model that generates, but the model is an encoder",
            ));
        }
        let (checkpoint, model) = (&mut self.checkpoint, &mut self.model);
        self.draft = speculation.open(DraftTarget { checkpoint, model, is_built_in: self.is_built_in })?;
        self.speculation = Some(speculation.clone());
        Ok(self)
    }

    /// Speculation settings of its engines, if they draft.
    pub fn speculation(&self) -> Option<&Speculation> {
        self.speculation.as_ref()
    }

    /// Program and weights of the draft model, if [`speculate`](Self::speculate) opened one.
    pub fn draft(&self) -> Option<(&Program, &Checkpoint)> {
        self.draft.as_ref().map(|draft| (draft.program(), &draft.checkpoint))
    }

    /// A hash of the fingerprints of the model and of its draft model
    /// ([`Checkpoint::fingerprint`]): names, types, shapes and the beginnings of the tensors.
    /// Stable: files may store it. Must be called before the model is loaded, which takes the draft
    /// model.
    pub fn weights_fingerprint(&self) -> u64 {
        let draft = self.draft.as_ref().map(|draft| draft.checkpoint.fingerprint());
        xxh64(format!("{} {draft:?}", self.checkpoint.fingerprint()).as_bytes(), 0)
    }

    /// Bytes of all weights as stored, with those of the draft model. Shared tensors count once.
    pub fn stored_bytes(&self) -> u64 {
        let drafts = self.draft.iter().flat_map(|draft| draft.checkpoint.tensors());
        let places = self.checkpoint.tensors().chain(drafts).map(|tensor| tensor.bytes.as_ptr_range());
        let distinct: HashSet<_> = places.collect();
        distinct.iter().map(|place| place.end as u64 - place.start as u64).sum()
    }

    /// Shards the target for one of `ranks` ranks (tensor parallelism). Only rank 0 keeps the draft
    /// model, unsharded. Must be called after [`speculate`](Self::speculate).
    pub fn for_rank(mut self, rank: usize, ranks: usize) -> Result<Self, Error> {
        self.model.target = self.shard_of_target(rank, ranks)?;
        if rank > 0 {
            // All ranks must compute the same rows of the target, so all keep the tap of rank 0.
            self.draft_tap = self.draft.take().and_then(|draft| draft.tap());
        }
        Ok(self)
    }

    /// Checks that the target can be sharded for `ranks` ranks.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), Error> {
        self.shard_of_target(0, ranks).map(drop)
    }

    /// The shard of the target for one rank.
    fn shard_of_target(&self, rank: usize, ranks: usize) -> Result<Program, Error> {
        self.model.target.for_rank(rank, ranks).map_err(|why| Error::invalid("ranks", why))
    }

    /// Keeps only the experts of `replica`, one of `replicas` (expert parallelism). The draft model
    /// keeps all of its experts. Must be called after [`speculate`](Self::speculate).
    pub fn for_replica(mut self, replica: usize, replicas: usize) -> Result<Self, Error> {
        let shard = self.model.target.for_replica(replica, replicas);
        self.model.target = shard.map_err(|why| Error::invalid("experts", why))?;
        Ok(self)
    }

    /// Lets `watch` know how far [`load`](Self::load) is on the CPU backend: operations whose
    /// weights are ready, and all of them.
    pub fn watch_load(self, watch: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self { watch: Box::new(watch), ..self }
    }

    /// Makes [`load`](Self::load) on the CPU backend share packed weights with other processes,
    /// those of the draft model included.
    pub fn share_packed_weights(self, file: Arc<PackedFile>) -> Self {
        Self { packed_file: Some(file), ..self }
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
        Ok(self.checkpoint.text_files()?)
    }

    /// The tokenizer; `None` if there is no `tokenizer.json` or GGUF vocabulary.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        Ok(self.checkpoint.tokenizer()?)
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

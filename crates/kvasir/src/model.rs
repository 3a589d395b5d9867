//! A loaded model with its tokenizer, shared via `Arc`, and the default engine built over it.

use crate::{AnyExecutor, CacheOptions, Error, Loaded, Prompt, SharedPrefix};
use kvasir_engine::{Chunked, Core, Engine, Limits, Mixing, Order};
use kvasir_formats::Tokenizer;
use kvasir_kv::{Builders, CacheConfig, CacheKind, Rings, Token};
use std::sync::Arc;

/// Token budget of a step, and of its prefill part.
const STEP_TOKENS: u32 = 2048;
/// Share of free memory for a default KV pool.
const MEMORY_SHARE: f64 = 0.5;

/// A loaded model with its tokenizer. Shared via [`Arc`], so the weights exist once.
pub struct Model {
    /// Weights, prepared for a backend.
    pub loaded: Loaded,
    /// Tokenizer; `None` if the checkpoint has no vocabulary.
    pub tokenizer: Option<Tokenizer>,
    /// End-of-sequence token ids.
    pub eos: Vec<Token>,
    /// Caches supported by the backend.
    builders: Builders,
}

impl Model {
    /// Combines a loaded model with its tokenizer.
    pub fn new(loaded: Loaded) -> Result<Arc<Self>, Error> {
        let (tokenizer, eos) = (loaded.opened.tokenizer()?, loaded.opened.eos());
        let mut builders = Builders::default();
        builders.register_own(loaded.backend(), CacheKind::ALL).map_err(|e| Error::Failed(e.to_string()))?;
        Ok(Arc::new(Self { loaded, tokenizer, eos, builders }))
    }

    /// Tokenizes a prompt. `begins`: it starts a sequence, so special tokens may be added.
    pub fn ids(&self, prompt: Prompt, begins: bool) -> Result<Vec<Token>, Error> {
        let text = match prompt {
            Prompt::Ids(ids) => return Ok(ids),
            Prompt::Text(text) => text,
        };
        let none =
            || Error::Asked("the prompt is a text and the model has no tokenizer; ids do without".into());
        let tokenizer = self.tokenizer.as_ref().ok_or_else(none)?;
        Ok(tokenizer.encode(&text, begins)?)
    }

    /// Detokenizes ids without special tokens; `None` without a tokenizer.
    pub fn text(&self, ids: &[Token]) -> Option<String> {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.decode(ids, true).ok())
    }

    /// Ring buffers of this model's sliding-window layers.
    fn rings(&self, kind: CacheKind, longest: u32) -> Result<Rings, Error> {
        if kind != CacheKind::Contiguous {
            return Err(Error::Asked(format!("rings: {kind} keeps none, contiguous does")));
        }
        Rings::new(self.loaded.program().windows(), longest).map_err(|e| Error::Asked(format!("rings: {e}")))
    }

    /// An engine with a KV cache of its own, behind a shared prefix if given.
    pub(crate) fn engine(
        &self,
        options: &CacheOptions,
        prefix: Option<&SharedPrefix>,
    ) -> Result<Engine<AnyExecutor>, Error> {
        let asked = |e: &dyn std::fmt::Display| Error::Asked(e.to_string());
        let in_blocks = matches!(options.kind, CacheKind::Paged | CacheKind::Radix);
        let one_stream = matches!(options.kind, CacheKind::Contiguous | CacheKind::Tree);
        let block_size = if in_blocks { options.block_size } else { 1 };
        let capacity = options.capacity.unwrap_or_else(|| self.loaded.desk_slots(MEMORY_SHARE));
        if capacity < block_size.max(1) {
            return Err(Error::Asked(format!(
                "capacity {capacity} is less than a block of {block_size} slots"
            )));
        }
        if options.sequences == 0 || options.sequences > 4096 {
            return Err(Error::Asked(format!("sequences {} is not between 1 and 4096", options.sequences)));
        }
        let sequences = if one_stream { 1 } else { options.sequences };
        // Besides running sequences: retained ones, and ended ones named by steps in flight.
        let max_sequences = sequences.saturating_mul(4).saturating_add(64);
        let rings = options.rings.map(|longest| self.rings(options.kind, longest)).transpose()?;
        let step_tokens = rings.as_ref().map_or(STEP_TOKENS, |rings| rings.longest_write().min(STEP_TOKENS));
        let config = CacheConfig { max_sequences, block_size, rings, ..CacheConfig::new(capacity) };
        let own = self.builders.build(self.loaded.backend(), options.kind, &config).map_err(|e| asked(&e))?;
        let cache = match prefix {
            Some(prefix) => Box::new(prefix.frozen().under(own).map_err(|e| asked(&e))?),
            None => own,
        };
        let limits = Limits {
            max_num_seqs: sequences,
            max_num_batched_tokens: step_tokens,
            max_model_len: u32::try_from(self.loaded.program().max_positions).unwrap_or(u32::MAX),
            prefix_cache: in_blocks,
            ..Limits::default()
        };
        let policy = Chunked::new(STEP_TOKENS, Mixing::On { target: None });
        let core = Core::new(limits, Order::Fcfs, Box::new(policy), cache);
        let kv = options.kv.or(prefix.map(SharedPrefix::kv));
        let mut engine = self.loaded.engine_with(core, true, kv)?;
        if let Some(prefix) = prefix {
            prefix.attach(|id, pool| engine.executor_mut().attach(id, pool))?;
        }
        Ok(engine)
    }
}

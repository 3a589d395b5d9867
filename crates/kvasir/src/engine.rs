use crate::{AnyExecutor, Error, Loaded};
use kvasir_engine::{
    Chunked, Chunking, Core, Engine, Limits, Mixing, Order, Params, Policy, PrefillFirst, Request,
};
use kvasir_exec::Executor;
use kvasir_kv::blocks::BlockConfig;
use kvasir_kv::{Cache, CacheError, CacheKind, Cells, Contiguous, Paged, Radix, Token, TreeCache};
use std::time::Instant;

/// `--policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Waiting prompts before running sequences.
    PrefillFirst,
    /// A token budget for prompts in each step.
    #[default]
    Chunked,
}

/// How an engine is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Which cache.
    pub cache: CacheKind,
    /// Which policy.
    pub policy: PolicyKind,
    /// Slots of the pool.
    pub kv_capacity: u32,
    /// Slots per block, for caches with blocks.
    pub block_size: u32,
    /// Whether requests share prefixes, for caches that can.
    pub prefix_cache: bool,
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens of one step.
    pub max_num_batched_tokens: u32,
    /// Whether the next step is made while one runs.
    pub overlap: bool,
}

impl EngineOptions {
    /// For one sequence of at most `len` tokens.
    pub fn single(len: u32) -> Self {
        Self {
            cache: CacheKind::Contiguous,
            policy: PolicyKind::Chunked,
            kv_capacity: len,
            block_size: 16,
            prefix_cache: true,
            max_num_seqs: 1,
            max_num_batched_tokens: 2048,
            overlap: true,
        }
    }

    fn build_cache(&self) -> Result<Box<dyn Cache>, CacheError> {
        let (slots, seqs) = (self.kv_capacity, self.max_num_seqs.max(1));
        let blocks = BlockConfig {
            block_size: self.block_size,
            blocks: slots.div_ceil(self.block_size.max(1)),
            max_sequences: seqs,
            sharing: self.prefix_cache,
            dummy: true,
        };
        Ok(match self.cache {
            CacheKind::Contiguous => Box::new(Contiguous::new(slots)),
            CacheKind::Cells => Box::new(Cells::new(slots, seqs, None)?),
            CacheKind::Tree => Box::new(TreeCache::new(slots)),
            CacheKind::Paged => Box::new(Paged::new(blocks)?),
            CacheKind::Radix => Box::new(Radix::new(blocks)?),
        })
    }

    /// Slots that the pool must have, a dummy block included.
    fn pool_slots(&self) -> u32 {
        match self.cache {
            CacheKind::Contiguous | CacheKind::Cells | CacheKind::Tree => self.kv_capacity,
            CacheKind::Paged | CacheKind::Radix => {
                (self.kv_capacity.div_ceil(self.block_size.max(1)) + 1).saturating_mul(self.block_size)
            }
        }
    }
}

impl Loaded {
    /// An engine of its own pool over the shared weights.
    pub fn engine(&self, options: &EngineOptions) -> Result<Engine<AnyExecutor>, Error> {
        let named = |e: CacheError| Error::Asked(format!("--cache {}: {e}", options.cache));
        let cache = options.build_cache().map_err(named)?;
        let seqs = match options.cache {
            CacheKind::Contiguous | CacheKind::Tree => 1,
            CacheKind::Cells | CacheKind::Paged | CacheKind::Radix => options.max_num_seqs.max(1),
        };
        let tokens = options.max_num_batched_tokens.max(1);
        let executor = self.executor(options.pool_slots(), tokens, seqs);
        let limits = Limits {
            max_num_seqs: seqs,
            max_num_batched_tokens: tokens,
            max_model_len: self.program().max_positions as u32,
            max_prompt: None,
            prefix_cache: options.prefix_cache,
            ..Limits::default()
        };
        let limits = limits.within(&executor.abilities());
        let policy: Box<dyn Policy> = match options.policy {
            PolicyKind::PrefillFirst => Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)),
            PolicyKind::Chunked => Box::new(Chunked::new(tokens, Mixing::Off)),
        };
        let core = Core::new(limits, Order::default(), policy, cache);
        let started = Instant::now();
        let clock = move || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Engine::new(core, executor, clock).overlap(options.overlap))
    }

    /// A request for this model: refused if the prompt is not for it, and kept apart from prefixes that were turned by
    /// other angles.
    pub fn request(&self, prompt: Vec<Token>, params: Params) -> Result<Request, Error> {
        self.check_prompt(&prompt)?;
        if let Some((id, _)) = params.bias.iter().find(|(id, _)| *id as usize >= self.program().vocab) {
            return Err(Error::Asked(format!("the bias names id {id}, which is outside the vocabulary")));
        }
        let longest =
            prompt.len().saturating_add(params.max_tokens as usize).min(self.program().max_positions);
        // The lowest bit tells the two kinds of rows apart, the others keep tenants apart.
        let salt = params.salt.wrapping_shl(1) | self.program().prefix_salt(longest as u32);
        Ok(Request { tag: 0, prompt, params: Params { salt, ..params } })
    }
}

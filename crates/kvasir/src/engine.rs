//! Builds engines over loaded weights, prepares requests, and sizes KV cache pools from free
//! memory.

use crate::backend::AnyExecutor;
use crate::cache_options::CacheOptions;
use crate::error::Error;
use crate::layer_groups::group_facts;
use crate::load::{ExecutorSizes, LoadedModel};
use crate::memory::available_memory;
use crate::model::Model;
use crate::shared_prefix::SharedPrefix;
use crate::speculation::Speculation;
use kvasir_cpu::KvType;
use kvasir_engine::{
    ConfigError, Core, Engine, EngineConfig, Facts, GroupFacts, JoinReason, Params, Request, Resolved,
};
use kvasir_exec::Executor;
use kvasir_kv::{Rings, Token};
use std::{fmt::Display, time::Instant};

/// Error text for generation with an encoder, to follow the name of the model.
pub const ENCODER_CANNOT_GENERATE: &str = "is an encoder: it embeds or scores texts and does not generate; \
    serve it with `kvasir serve` for /v1/embeddings, /v1/rerank and /v1/score";
/// Default maximum pool size, in slots.
pub const DEFAULT_SLOTS: u32 = 32768;

impl LoadedModel {
    /// An engine over the shared weights, with a KV pool of its own. With `overlap`, it schedules
    /// step n + 1 while step n runs.
    pub fn engine(&self, core: Core, overlap: bool) -> Result<Engine<AnyExecutor>, Error> {
        self.engine_with(core, overlap, None)
    }

    /// [`engine`](Self::engine) without speculative decoding, to compare with.
    pub fn plain_engine(&self, core: Core, overlap: bool) -> Result<Engine<AnyExecutor>, Error> {
        let executor = self.executor_on_thread(&core, overlap, None)?;
        Ok(Engine::new(core, executor, clock()).overlap(overlap))
    }

    /// Builds an engine whose K/V has the data type `kv`.
    pub(crate) fn engine_with(
        &self,
        core: Core,
        overlap: bool,
        kv: Option<KvType>,
    ) -> Result<Engine<AnyExecutor>, Error> {
        let executor = self.executor_on_thread(&core, overlap, kv)?;
        let engine = Engine::new(core, executor, clock()).overlap(overlap);
        match self.speculation() {
            Some(speculation) => speculation.apply(engine),
            None => Ok(engine),
        }
    }

    /// The executor of a following rank, which runs the leading rank's steps on the calling thread.
    /// Its KV pool fits the cache of `core`.
    pub fn executor_for(&self, core: &Core) -> Result<AnyExecutor, Error> {
        self.executor_on_thread(core, false, None)
    }

    /// An executor with a KV pool for the cache of `core`; with `overlap`, on its own thread.
    pub(crate) fn executor_on_thread(
        &self,
        core: &Core,
        overlap: bool,
        kv: Option<KvType>,
    ) -> Result<AnyExecutor, Error> {
        let (cache, limits) = (core.cache(), core.limits());
        // The dummy slot lies in front of what the cache may allocate, or behind.
        let slots = cache.shape().capacity.saturating_add(cache.shape().block_size);
        let (tokens, rows) = (limits.max_num_batched_tokens, limits.max_num_seqs);
        let ring = cache.shape().rings.as_ref().map(Rings::longest_write);
        let states = cache.shape().states;
        let group_slots = (!cache.shape().windows.is_empty()).then(|| cache.shape().pool_slots());
        let executor =
            self.executor_with(ExecutorSizes { slots, tokens, rows, kv, ring, group_slots, states })?;
        if group_slots.is_some() && !executor.abilities().windows {
            let reason = format!("`{}` does not support window groups", self.backend());
            return Err(Error::invalid("backend", reason));
        }
        if states.is_some() && !executor.abilities().states {
            let reason = format!("`{}` does not store recurrent states", self.backend());
            return Err(Error::invalid("backend", reason));
        }
        if overlap { executor.on_thread() } else { Ok(executor) }
    }

    /// Whether steps overlap with scheduling unless it is chosen: on a device that computes beside
    /// the host, without speculation. On the CPU scheduling is a small part of a step, and with
    /// overlap a new request waits a step more.
    pub fn overlaps_by_default(&self) -> bool {
        self.simulated().is_some() && self.speculation().is_none()
    }

    /// Facts on which the defaults of an [`EngineConfig`] depend. K/V has at most
    /// `max_default_capacity` slots, unless the configuration sets the capacity.
    pub fn facts(&self, max_default_capacity: Option<u32>) -> Facts {
        self.facts_for(max_default_capacity, self.kv())
    }

    /// [`facts`](Self::facts) of an engine whose K/V has the data type `kv`.
    fn facts_for(&self, max_default_capacity: Option<u32>, kv: KvType) -> Facts {
        let program = self.program();
        Facts {
            // Limits reserve one position for a generated token, which an encoder does not use.
            max_model_len: self.max_model_len().saturating_add(program.is_encoder().into()),
            is_encoder: program.is_encoder(),
            free_bytes: self.free_bytes(),
            groups: match self.simulated() {
                Some(preset) => vec![GroupFacts::full(preset.slot_bytes())],
                None => group_facts(program, self.draft_layers(), kv),
            },
            join_reason: self.speculation().and_then(Speculation::joins_windows),
            max_default_capacity,
            longest_draft: self.speculation().map_or(0, Speculation::longest_draft),
            windows: program.windows(),
            is_cpu: true,
            is_simulated: self.simulated().is_some(),
            has_graphs: false,
            has_rings: self.cpu_model().is_some(),
            batch_sizes: self.batch_sizes().to_vec(),
            overlaps: self.overlaps_by_default(),
        }
    }

    /// Builds a request; rejects prompts that do not fit the model. The prefix salt separates K/V
    /// rotated with different RoPE angles.
    pub fn request(&self, prompt: Vec<Token>, params: Params) -> Result<Request, Error> {
        self.check_prompt(&prompt)?;
        if self.program().is_encoder() && !params.sampling.hidden {
            return Err(Error::invalid("model", ENCODER_CANNOT_GENERATE));
        }
        if let Some((id, _)) = params.bias.iter().find(|(id, _)| *id as usize >= self.program().vocab) {
            return Err(Error::invalid("bias", format!("names id `{id}`, which is outside the vocabulary")));
        }
        let longest =
            prompt.len().saturating_add(params.max_tokens as usize).min(self.program().max_positions);
        // The lowest bit separates RoPE variants, the others separate tenants.
        let salt = params.salt.wrapping_shl(1) | self.program().prefix_salt(longest as u32);
        Ok(Request { tag: 0, prompt, params: Params { salt, ..params } })
    }

    /// Resolves a configuration for this model. Unless it sets the capacity, the pool has `slots`
    /// slots, or as many as its share of the free memory holds.
    pub fn resolve(&self, config: &EngineConfig, slots: u32) -> Result<Resolved, ConfigError> {
        config.resolve(&self.facts(Some(slots)))
    }

    /// Slots that the newest token and the drafts of a sequence hold until they are verified; 0
    /// without drafts.
    pub fn draft_slots(&self) -> u32 {
        self.speculation().map_or(0, |speculation| speculation.parameters.shape.nodes + 1)
    }

    /// Memory that the weights leave, in bytes; `None` if unknown. Matrices that are packed later
    /// and mapped tables count as taken.
    pub fn free_bytes(&self) -> Option<u64> {
        match self.simulated() {
            Some(preset) => Some(preset.free_bytes()),
            None => Some(available_memory()?.saturating_sub(self.pending_weight_bytes())),
        }
    }
}

/// Runs dummy steps on the executor of an idle engine, so that its first request does not wait for
/// what a first step does. A process that runs one request gains nothing: its prompt is the first
/// step.
pub fn warm_up(engine: &mut Engine<AnyExecutor>) -> Result<(), Error> {
    let padding = engine.core().padding(&engine.executor().abilities());
    let warmed = padding.warm_up(engine.executor_mut());
    warmed.map_err(|error| Error::Failed(format!("a dummy step at start-up: {error}")))
}

/// Nanoseconds since this call.
pub(crate) fn clock() -> impl FnMut() -> u64 + Send + 'static {
    let started = Instant::now();
    move || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Speculation {
    /// Enables speculative decoding. Fails if the engine overlaps steps, or if its policy or cache
    /// cannot verify these drafts.
    pub fn apply<E: Executor>(&self, engine: Engine<E>) -> Result<Engine<E>, Error> {
        let (kind, shape) = (engine.core().cache().shape().kind, self.parameters.shape);
        let conflict = |parameter, value: &dyn Display, reason: &dyn Display| {
            let spec: (_, &dyn Display) = ("speculation", self);
            ConfigError::conflict(spec, (parameter, value), reason.to_string())
        };
        if engine.overlaps() {
            let reason = "a sequence with drafts waits for the tokens of its step, so nothing \
                          overlaps (8 streams took 692 steps instead of 423)";
            return Err(conflict("overlap", &"on", &reason).into());
        }
        if !engine.core().verifies_drafts() {
            let reason = "its decode rows have one token each";
            return Err(conflict("policy", &engine.core().policy(), &reason).into());
        }
        if self.proposes_trees() && engine.core().cache().shape().states.is_some() {
            let reason = "a state covers one path of the tree; propose chains (topk=1)";
            return Err(ConfigError::recurrent_layers(("speculation", self), reason).into());
        }
        let windows = engine.core().cache().shape().windows.len();
        if self.proposes_trees() && windows > 0 {
            let reason = "a window covers one path of the tree; propose chains (topk=1)";
            return Err(conflict("window_groups", &windows, &reason).into());
        }
        let engine = match self.drafter() {
            Some(drafter) => engine.draft(drafter),
            None => engine.draft_in_executor(shape.depth, shape.nodes, self.proposes_trees()),
        };
        let engine = engine.map_err(|error| conflict("cache", &kind, &error))?;
        Ok(engine.draft_width(self.parameters.width))
    }
}

impl Model {
    /// An engine with a KV cache of its own, behind a shared prefix if given.
    pub(crate) fn engine(
        &self,
        options: &CacheOptions,
        prefix: Option<&SharedPrefix>,
    ) -> Result<Engine<AnyExecutor>, Error> {
        if let (Some(prefix), Some(speculation)) =
            (prefix, self.loaded.speculation().filter(|speculation| speculation.needs_model()))
        {
            let (spec, tokens): ((_, &dyn Display), _) = (("speculation", speculation), prefix.extent().rows);
            let reason = "the draft model has no K and V of the prefix";
            return Err(ConfigError::conflict(spec, ("shared_prefix", &tokens), reason).into());
        }
        let kv = options.kv.or(prefix.map(SharedPrefix::kv));
        let facts = self.loaded.facts_for(Some(DEFAULT_SLOTS), kv.unwrap_or(self.loaded.kv()));
        let join_reason = prefix.map(|_| JoinReason::SharedPrefix).or(facts.join_reason);
        let facts = Facts { join_reason, ..facts };
        let resolved = options.engine.resolve(&facts)?;
        let own = resolved.build_cache()?;
        let cache = match prefix {
            Some(prefix) => Box::new(prefix.frozen().under(own).map_err(|e| Error::invalid("cache", e))?),
            None => own,
        };
        let mut engine = self.loaded.engine_with(resolved.core_over(cache), resolved.overlap, kv)?;
        if let Some(prefix) = prefix {
            prefix.attach(|id, pool| engine.executor_mut().attach(id, pool))?;
        }
        Ok(engine)
    }
}

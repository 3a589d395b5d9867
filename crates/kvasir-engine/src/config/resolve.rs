//! Resolves an [`EngineConfig`] against the facts of model and device.

use crate::config::EngineConfig;
use crate::config::error::{ConfigError, checked_count, checked_share, ensure};
use crate::config::policy::PolicyConfig;
use crate::core::Core;
use crate::scheduler::limits::Limits;
use crate::scheduler::queue::Order;
use kvasir_kv::{Cache, CacheConfig, CacheKind, Rings, build};

/// Maximum concurrent sequences.
const MOST_SEQUENCES: u32 = 1 << 16;
/// Maximum tokens of a sequence or a step.
const MOST_TOKENS: u32 = 1 << 30;
/// Maximum blocks of a pool.
const MOST_BLOCKS: u32 = 1 << 24;

/// Facts of a model and a device on which defaults and checks depend.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Context length of the model.
    pub max_model_len: u32,
    /// KV cache slots that fit into the allotted memory.
    pub slots: u32,
    /// KV cache slots that fit into all memory left by the weights; `None` if unknown.
    pub slots_in_memory: Option<u32>,
    /// Sliding windows of the model's layers.
    pub windows: Vec<u32>,
    /// Whether the model is an encoder. `max_model_len` is then the maximum text length plus one.
    pub is_encoder: bool,
    /// Whether the device is a CPU.
    pub is_cpu: bool,
    /// Whether the device is simulated, so that sequences may exceed the model's positions.
    pub is_simulated: bool,
    /// Whether decode steps can run as captured graphs.
    pub has_graphs: bool,
    /// Whether the backend has ring buffers for sliding-window layers.
    pub has_rings: bool,
    /// Batch sizes that decode steps are padded to, in rising order.
    pub batch_sizes: Vec<u32>,
    /// Whether steps overlap with scheduling by default.
    pub overlaps: bool,
}

/// A validated configuration with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// KV cache kind.
    pub kind: CacheKind,
    /// Capacity, block size and capabilities of the cache.
    pub cache: CacheConfig,
    /// Scheduling policy.
    pub policy: PolicyConfig,
    /// Order of the waiting queue.
    pub order: Order,
    /// Scheduler limits.
    pub limits: Limits,
    /// Whether step n + 1 is scheduled while step n runs.
    pub overlap: bool,
}

impl Resolved {
    /// Builds the cache and the core over it.
    pub fn core(&self) -> Result<Core, ConfigError> {
        let refused = |error| {
            let reason = format!("is no capacity of a {} cache: {error}", self.kind);
            ConfigError::invalid("kv_capacity", &self.cache.capacity, reason)
        };
        Ok(self.core_over(build(self.kind, &self.cache).map_err(refused)?))
    }

    /// Builds the core over a cache of this configuration, such as one behind a shared prefix.
    pub fn core_over(&self, cache: Box<dyn Cache>) -> Core {
        Core::new(self.limits, self.order, self.policy.build(), cache)
    }
}

impl EngineConfig {
    /// Fills in defaults and checks the configuration. An error names the parameters at fault.
    pub fn resolve(&self, facts: &Facts) -> Result<Resolved, ConfigError> {
        if facts.is_encoder {
            self.with_encoder_defaults(facts)?.resolve_defaults(facts)
        } else {
            self.resolve_defaults(facts)
        }
    }

    /// [`resolve`](Self::resolve), after the defaults of encoders.
    fn resolve_defaults(&self, facts: &Facts) -> Result<Resolved, ConfigError> {
        let needs_blocks = self.policy.is_rectangular();
        let kind = self.cache.unwrap_or(if needs_blocks { CacheKind::Paged } else { CacheKind::Radix });
        self.check_cache(kind)?;
        let graphs = self.graph_max_batch.filter(|_| !facts.has_graphs && facts.batch_sizes.is_empty());
        if let Some(most) = graphs {
            let reason = "needs captured graphs, which only the simulator has, or declared batch sizes";
            return Err(ConfigError::invalid("graph_max_batch", &most, reason));
        }
        let limits = self.limits(facts, kind)?;
        check_batch_sizes(&facts.batch_sizes, &limits)?;
        let rings = if self.rings { Some(rings(facts, limits.max_num_batched_tokens)?) } else { None };
        let block_size = if kind.is_block_based() {
            checked_count("block_size", self.block_size, if needs_blocks { 64 } else { 16 }, 256)?
        } else {
            1
        };
        let capacity = self.capacity(facts, block_size)?;
        self.policy.check(block_size, &limits)?;
        let cache = CacheConfig {
            // Ended sequences may still be named by steps in flight.
            max_sequences: limits.max_num_seqs.saturating_mul(2).saturating_add(64),
            block_size,
            sharing: limits.prefix_cache,
            dummy: needs_blocks,
            rings,
            ..CacheConfig::new(capacity)
        };
        let overlap = self.overlap.unwrap_or(facts.overlaps);
        Ok(Resolved { kind, cache, policy: self.policy, order: self.order, limits, overlap })
    }

    /// Refuses parameters that the cache has no use for.
    fn check_cache(&self, kind: CacheKind) -> Result<(), ConfigError> {
        let refuse = |parameter, value: &dyn std::fmt::Display, reason: &str| {
            Err(ConfigError::conflict((parameter, value), ("cache", &kind), reason))
        };
        let in_blocks = kind.is_block_based();
        match self {
            _ if self.policy.is_rectangular() && !in_blocks => {
                refuse("policy", &self.policy.build().name(), "it needs blocks (paged or radix)")
            }
            Self { block_size: Some(size), .. } if !in_blocks && *size != 1 => {
                refuse("block_size", size, "it hands out single slots")
            }
            Self { prefix_cache: Some(is_on), .. } if !in_blocks => {
                refuse("prefix_cache", &if *is_on { "on" } else { "off" }, "it keeps no prefixes")
            }
            Self { max_num_seqs: Some(n), .. } if kind.holds_one_sequence() && *n > 1 => {
                refuse("max_num_seqs", n, "it holds one sequence")
            }
            Self { rings: true, .. } if kind != CacheKind::Contiguous => {
                refuse("rings", &"on", "only contiguous has them")
            }
            _ => Ok(()),
        }
    }

    fn limits(&self, facts: &Facts, kind: CacheKind) -> Result<Limits, ConfigError> {
        let max_model_len =
            checked_count("max_model_len", self.max_model_len, facts.max_model_len, MOST_TOKENS)?;
        let is_length = |holds, reason: String| {
            ensure(holds, || ConfigError::invalid("max_model_len", &max_model_len, reason))
        };
        is_length(max_model_len >= 2, "leaves no room for a token of a prompt and one of an answer".into())?;
        let positions = facts.max_model_len;
        is_length(
            max_model_len <= positions || facts.is_simulated,
            format!("is more than the {positions} positions that the model has"),
        )?;
        let sequences = if kind.holds_one_sequence() { 1 } else { 512 };
        let tokens = if facts.is_cpu { 2048 } else { 16384 };
        Ok(Limits {
            max_num_seqs: checked_count("max_num_seqs", self.max_num_seqs, sequences, MOST_SEQUENCES)?,
            max_num_batched_tokens: checked_count(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                tokens,
                MOST_TOKENS,
            )?,
            max_model_len,
            watermark: (checked_share("watermark", self.watermark)? * 1000.0).round() as u32,
            prefix_cache: kind.is_block_based() && self.prefix_cache.unwrap_or(!facts.is_encoder),
            bidirectional: facts.is_encoder,
            graph_max_batch: self.graph_max_batch.unwrap_or(Limits::default().graph_max_batch),
            ..Limits::default()
        })
    }

    fn capacity(&self, facts: &Facts, block_size: u32) -> Result<u32, ConfigError> {
        let most = MOST_BLOCKS.saturating_mul(block_size);
        if self.kv_capacity.is_none() && facts.slots < block_size {
            let reason = format!("leaves no room for a block of {block_size} slots");
            return Err(ConfigError::invalid("memory_utilization", &self.memory_share()?, reason));
        }
        if let (Some(slots), Some(most)) =
            (self.kv_capacity, facts.slots_in_memory.filter(|_| !self.overcommit))
            && slots > most
        {
            let reason = format!("the memory that the weights leave free holds {most} slots");
            return Err(ConfigError::conflict(("kv_capacity", &slots), ("overcommit", &"off"), reason));
        }
        let capacity = checked_count("kv_capacity", self.kv_capacity, facts.slots.min(most), most)?;
        ensure(capacity >= block_size, || {
            let reason = format!("is less than a block of {block_size} slots");
            ConfigError::invalid("kv_capacity", &capacity, reason)
        })?;
        Ok(capacity)
    }
}

/// Checks declared batch sizes against the limits of a step.
fn check_batch_sizes(sizes: &[u32], limits: &Limits) -> Result<(), ConfigError> {
    let (tokens, most) = (limits.max_num_batched_tokens, limits.graph_max_batch);
    let Some(smallest) = sizes.first() else { return Ok(()) };
    ensure(smallest <= &most, || {
        let reason = "it is below every size";
        ConfigError::conflict(("graph_max_batch", &most), ("batch_sizes", smallest), reason)
    })?;
    let largest = sizes.iter().filter(|size| **size <= most).max().unwrap_or(smallest);
    ensure(largest <= &tokens, || {
        let reason = "the batch exceeds a step";
        ConfigError::conflict(("batch_sizes", largest), ("max_num_batched_tokens", &tokens), reason)
    })
}

fn rings(facts: &Facts, longest_write: u32) -> Result<Rings, ConfigError> {
    let refused = |reason: String| ConfigError::invalid("rings", &"on", reason);
    let rings = Rings::new(facts.windows.clone(), longest_write);
    let rings = rings.map_err(|error| refused(format!("is impossible: {error}")))?;
    ensure(facts.has_rings, || refused("needs the cpu backend: the others have no ring buffers".into()))?;
    Ok(rings)
}

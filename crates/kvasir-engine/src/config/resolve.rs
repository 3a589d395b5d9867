//! Resolves an [`EngineConfig`] against the facts of model and device.

use crate::config::EngineConfig;
use crate::config::error::{ConfigError, MAX_TOKENS, checked_count, checked_share, ensure};
use crate::config::facts::Facts;
use crate::config::memory_division::{CacheTraits, MemoryDivision};
use crate::config::policy::PolicyConfig;
use crate::core::Core;
use crate::scheduler::limits::Limits;
use crate::scheduler::queue::Order;
use kvasir_kv::{Cache, CacheConfig, CacheKind, Rings, build};

/// Maximum concurrent sequences.
const MAX_SEQUENCES: u32 = 1 << 16;

/// A validated configuration with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// KV cache kind.
    pub kind: CacheKind,
    /// Capacity, block size and capabilities of the cache.
    pub cache: CacheConfig,
    /// How the memory is divided among K/V, windows, live states and checkpoints.
    pub division: MemoryDivision,
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
        Ok(self.core_over(self.build_cache()?))
    }

    /// Builds the cache.
    pub fn build_cache(&self) -> Result<Box<dyn Cache>, ConfigError> {
        self.check_recurrent_layers()?;
        self.check_window_groups()?;
        let refused = |error| {
            let reason = format!("is no capacity of a {} cache: {error}", self.kind);
            ConfigError::invalid("kv_capacity", &self.cache.capacity, reason)
        };
        build(self.kind, &self.cache).map_err(refused)
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
        let overlap = self.overlap.unwrap_or(facts.overlaps);
        let traits = CacheTraits { kind, block_size, overlaps: overlap };
        let division = MemoryDivision::of(facts, self, &limits, traits)?;
        self.policy.check(block_size, &limits)?;
        let cache = CacheConfig {
            // Ended sequences may still be named by steps in flight.
            max_sequences: limits.max_num_seqs.saturating_mul(2).saturating_add(64),
            block_size,
            sharing: limits.prefix_cache,
            dummy: needs_blocks,
            rings,
            windows: division.windows.iter().map(|window| window.config).collect(),
            states: division.states.map(|states| states.config),
            ..CacheConfig::new(division.slots)
        };
        Ok(Resolved { kind, cache, division, policy: self.policy, order: self.order, limits, overlap })
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
            checked_count("max_model_len", self.max_model_len, facts.max_model_len, MAX_TOKENS)?;
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
            max_num_seqs: checked_count("max_num_seqs", self.max_num_seqs, sequences, MAX_SEQUENCES)?,
            max_num_batched_tokens: checked_count(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                tokens,
                MAX_TOKENS,
            )?,
            max_model_len,
            watermark: (checked_share("watermark", self.watermark)? * 1000.0).round() as u32,
            prefix_cache: kind.is_block_based() && self.prefix_cache.unwrap_or(!facts.is_encoder),
            bidirectional: facts.is_encoder,
            graph_max_batch: self.graph_max_batch.unwrap_or(Limits::default().graph_max_batch),
            ..Limits::default()
        })
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

//! Configuration of an engine: KV cache, scheduling policy, queue order and limits.
//!
//! [`EngineConfig::resolve`] fills in the defaults and refuses conflicts. The library, `serve`,
//! `chat`, `generate`, `sim` and the benchmarks all go through it, so that a default or a conflict
//! is defined once. Errors name parameters, not flags; the command line translates them.
//!
//! Speculative decoding is no part of it: a drafter belongs to the opened model, whose weights may
//! include a draft model.

pub(crate) mod encoder;
pub(crate) mod error;
pub(crate) mod facts;
pub(crate) mod join_reason;
pub(crate) mod memory_division;
pub(crate) mod policy;
pub(crate) mod recurrent_layers;
pub(crate) mod resolve;
pub(crate) mod window_groups;

use crate::config::error::ConfigError;
use crate::config::policy::PolicyConfig;
use crate::scheduler::queue::Order;
use kvasir_kv::CacheKind;

/// Configuration of an engine. Fields that are `None` get defaults that depend on the other fields
/// and on the [`Facts`](crate::Facts) of model and device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineConfig {
    /// KV cache: `radix` by default, `paged` under the rectangular policy.
    pub cache: Option<CacheKind>,
    /// Scheduling policy.
    pub policy: PolicyConfig,
    /// Order of the waiting queue.
    pub order: Order,
    /// KV cache capacity in slots; by default what the memory holds besides the recurrent states,
    /// at most [`Facts::max_default_capacity`](crate::Facts::max_default_capacity).
    pub kv_capacity: Option<u32>,
    /// Share of the memory left by the weights that K/V and recurrent states may use; cannot be
    /// combined with `kv_capacity`.
    pub memory_utilization: Option<f64>,
    /// Whether `kv_capacity` may exceed what the free memory holds: memory is committed as it is used.
    pub overcommit: bool,
    /// Bytes for checkpoints of recurrent states; an eighth of the memory by default.
    pub state_memory: Option<u64>,
    /// Interval of regular checkpoints of recurrent states in tokens, 0 for none. The default
    /// depends on the size of a state.
    pub state_interval: Option<u32>,
    /// Number of engines on this machine, each of which gets an equal part of the memory; 0 counts
    /// as 1.
    pub engines: u32,
    /// Slots per block, 1 to 256: 16 by default, 64 under the rectangular policy.
    pub block_size: Option<u32>,
    /// Whether sliding-window layers have ring buffers, for `contiguous`.
    pub rings: bool,
    /// Whether K/V blocks are exported or imported. Sliding-window layers then store K/V of all
    /// tokens, because a transferred block holds all layers.
    pub transfers_kv: bool,
    /// Automatic prefix caching, for `paged` and `radix`; on by default.
    pub prefix_cache: Option<bool>,
    /// Maximum running sequences: 512 by default, 1 for caches of one sequence.
    pub max_num_seqs: Option<u32>,
    /// Maximum tokens of a step: 2048 by default on a CPU, else 16384.
    pub max_num_batched_tokens: Option<u32>,
    /// Maximum prompt plus output tokens; the model's positions by default.
    pub max_model_len: Option<u32>,
    /// Share of the KV cache that admission keeps free.
    pub watermark: f64,
    /// Whether step n + 1 is scheduled while step n runs; as the device gains from it by default.
    pub overlap: Option<bool>,
    /// Largest decode batch that runs as a captured graph or is padded to a declared batch size.
    pub graph_max_batch: Option<u32>,
}

impl EngineConfig {
    /// Share of the memory left by the weights for K/V and recurrent states; 0.9 by default.
    pub(crate) fn memory_share(&self) -> Result<f64, ConfigError> {
        if let (Some(share), Some(slots)) = (self.memory_utilization, self.kv_capacity) {
            let reason = "each of them sets the capacity";
            return Err(ConfigError::conflict(
                ("memory_utilization", &share),
                ("kv_capacity", &slots),
                reason,
            ));
        }
        let share = error::checked_share("memory_utilization", self.memory_utilization.unwrap_or(0.9))?;
        Ok(share / f64::from(self.engines.max(1)))
    }

    /// Refuses a memory share that is out of range, or that is combined with `kv_capacity`.
    pub fn check_memory_share(&self) -> Result<(), ConfigError> {
        self.memory_share().map(|_| ())
    }
}

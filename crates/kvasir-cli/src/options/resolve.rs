//! Options as an engine configuration, and what the trace page shows of a resolved one.

use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::switch::Switch;
use kvasir::{EngineConfig, PolicyConfig, Resolved};
use kvasir_engine::Core;
use kvasir_sim::StaticShape;
use serde_json::{Map, Value, json};

impl Options {
    /// The engine configuration that these options describe.
    pub(crate) fn config(&self) -> Result<EngineConfig, Failure> {
        Ok(EngineConfig {
            cache: self.cache,
            policy: self.policy_config()?,
            order: self.order.unwrap_or_default(),
            kv_capacity: self.kv_capacity,
            memory_utilization: self.memory_utilization,
            block_size: self.block_size,
            rings: self.rings.is_some_and(Switch::is_on),
            prefix_cache: self.prefix_cache.map(Switch::is_on),
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            watermark: self.watermark.unwrap_or(0.0),
            overlap: self.overlap.map(Switch::is_on),
            graph_max_batch: self.graph_max_batch,
        })
    }
}

/// Configuration for the trace page.
pub(crate) fn setup(resolved: &Resolved, core: &Core) -> Map<String, Value> {
    let (limits, block) = (&resolved.limits, resolved.cache.block_size);
    let mut setup = Map::new();
    let mut set = |name: &str, value: Value| drop(setup.insert(name.to_owned(), value));
    set("policy", core.policy().into());
    set("cache", json!(resolved.kind));
    set("order", json!(resolved.order));
    set("block_size", block.into());
    set("capacity", core.cache().capacity().into());
    set("max_model_len", limits.max_model_len.into());
    set("max_num_seqs", limits.max_num_seqs.into());
    set("max_num_batched_tokens", limits.max_num_batched_tokens.into());
    if let PolicyConfig::Rectangular(rectangular) = resolved.policy {
        set("dummy_blocks", 1.into());
        set("rectangular", true.into());
        set("chunk_size", rectangular.chunk_size.into());
        set("max_batch_tkv", rectangular.max_batch_tkv.into());
    }
    setup
}

/// The shapes that steps keep under the rectangular policy.
pub(crate) fn static_shape(resolved: &Resolved) -> Option<StaticShape> {
    let PolicyConfig::Rectangular(rectangular) = resolved.policy else { return None };
    Some(StaticShape {
        block: resolved.cache.block_size,
        chunk: rectangular.chunk_size,
        max_rows: rectangular.max_batch,
        max_model_len: resolved.limits.max_model_len,
        max_volume: rectangular.max_batch_tkv,
    })
}

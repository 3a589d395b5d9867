//! Options as an engine configuration, and what the trace page shows of a resolved one.

use crate::io::failure::Failure;
use crate::options::byte_size::ByteSize;
use crate::options::switch::Switch;
use crate::options::{Options, SequenceOptions};
use kvasir::{EngineConfig, LoadedModel, PolicyConfig, Resolved, Speculation};
use kvasir_engine::{Chunking, Core, Mixing, StepTarget};
use kvasir_kv::CacheKind;
use kvasir_sim::StaticShape;
use serde_json::{Map, Value, json};

impl Options {
    /// The engine configuration that these options describe.
    pub(crate) fn config(&self) -> Result<EngineConfig, Failure> {
        Ok(EngineConfig {
            cache: self.sequence.cache,
            policy: self.policy_config()?,
            order: self.batching.order.unwrap_or_default(),
            kv_capacity: self.sequence.kv_capacity,
            memory_utilization: self.sequence.memory_utilization,
            engines: 1,
            overcommit: self.sequence.overcommit.is_some_and(Switch::is_on),
            state_memory: self.sequence.state_memory.map(ByteSize::bytes),
            state_interval: self.sequence.state_interval,
            block_size: self.sequence.block_size,
            rings: self.sequence.rings.is_some_and(Switch::is_on),
            transfers_kv: false,
            prefix_cache: self.batching.prefix_cache.map(Switch::is_on),
            max_num_seqs: self.batching.max_num_seqs,
            max_num_batched_tokens: self.sequence.max_num_batched_tokens,
            max_model_len: self.sequence.max_model_len,
            watermark: self.batching.watermark.unwrap_or(0.0),
            overlap: self.sequence.overlap.map(Switch::is_on),
            graph_max_batch: self.sequence.graph_max_batch,
        })
    }
}

impl SequenceOptions {
    /// Resolves the configuration of an engine for one sequence of up to `tokens` tokens. The cache is
    /// contiguous by default, and as long as the sequence may get.
    pub(crate) fn resolve(&self, model: &LoadedModel, tokens: usize) -> Result<Resolved, Failure> {
        let longest = tokens.min(model.program().max_positions);
        // A multiple of every block size.
        let slots = (longest as u32).saturating_add(model.draft_slots()).next_multiple_of(256);
        let mut config = Options::from(self.clone()).config()?;
        if !config.policy.is_rectangular() {
            let trees = model.speculation().is_some_and(Speculation::proposes_trees);
            config.cache.get_or_insert(if trees { CacheKind::Tree } else { CacheKind::Contiguous });
        }
        Ok(model.resolve(&config, slots)?)
    }
}

/// The configuration of an engine over a loaded model, as [`setup`] with the device.
pub(crate) fn setup_of(model: &LoadedModel, resolved: &Resolved, core: &Core) -> Map<String, Value> {
    let mut setup = setup(resolved, core);
    let mut set = |name: &str, value: Value| drop(setup.insert(name.to_owned(), value));
    set("device", model.backend().into());
    set("kv_dtype", model.kv().to_string().into());
    if let Some((threads, precision)) = model.arithmetic() {
        set("threads", threads.into());
        set("precision", format!("{precision:?}").to_lowercase().into());
    }
    if let Some(cpu) = model.cpu_model() {
        set("instructions", cpu.isa().to_string().into());
    }
    if let Some(preset) = model.simulated() {
        set("sim_preset", preset.to_string().into());
    }
    if !model.batch_sizes().is_empty() {
        set("batch_sizes", model.batch_sizes().into());
    }
    if let Some(spec) = model.speculation() {
        set("spec", speculation(spec));
    }
    setup
}

/// How an engine drafts.
pub(crate) fn speculation(spec: &Speculation) -> Value {
    let shape = spec.parameters.shape;
    json!({"method": spec.name(), "depth": shape.depth, "nodes": shape.nodes, "accept": format!("{:?}", spec.acceptance).to_lowercase()})
}

/// The configuration of an engine, for reports and the trace page: every parameter that was resolved.
pub(crate) fn setup(resolved: &Resolved, core: &Core) -> Map<String, Value> {
    let (limits, block) = (&resolved.limits, resolved.cache.block_size);
    let mut setup = Map::new();
    let mut set = |name: &str, value: Value| drop(setup.insert(name.to_owned(), value));
    set("policy", core.policy().into());
    set("cache", json!(resolved.kind));
    set("order", json!(resolved.order));
    set("block_size", block.into());
    set("capacity", core.cache().shape().capacity.into());
    set("max_model_len", limits.max_model_len.into());
    set("max_num_seqs", limits.max_num_seqs.into());
    set("max_num_batched_tokens", limits.max_num_batched_tokens.into());
    set("prefix_cache", limits.prefix_cache.into());
    set("watermark", (f64::from(limits.watermark) / 1000.0).into());
    set("overlap", resolved.overlap.into());
    set("graph_max_batch", limits.graph_max_batch.into());
    set("rings", resolved.cache.rings.is_some().into());
    if !resolved.cache.windows.is_empty() {
        let windows = resolved.cache.windows.iter();
        set("window_slots", windows.map(|window| window.capacity).collect::<Vec<_>>().into());
    }
    if let Some(reason) = resolved.division.joined_windows {
        set("joined_windows", reason.to_string().into());
    }
    if let Some(states) = resolved.cache.states {
        set("live_states", states.live.into());
        set("checkpoints", states.checkpoints.into());
        set("state_interval", states.interval.into());
    }
    match resolved.policy {
        PolicyConfig::PrefillFirst { chunking, delay_factor } => {
            let cap = if let Chunking::On { cap } = chunking { cap } else { None };
            set("chunked_prefill", (chunking != Chunking::Off).into());
            set("long_prefill_cap", cap.into());
            set("delay_factor", delay_factor.into());
        }
        PolicyConfig::Chunked { max_extend_tokens, mixing } => {
            set("max_extend_tokens", max_extend_tokens.into());
            set("mixed", (mixing != Mixing::Off).into());
            match mixing {
                Mixing::On { target: Some(StepTarget::Time(ns)) } => {
                    set("step_target_ms", (ns as f64 / 1e6).into());
                }
                Mixing::On { target: Some(StepTarget::Percent(percent)) } => {
                    set("step_target_times", (f64::from(percent) / 100.0).into());
                }
                _ => {}
            }
        }
        PolicyConfig::Rectangular(rectangular) => {
            set("dummy_blocks", 1.into());
            set("rectangular", true.into());
            set("chunk_size", rectangular.chunk_size.into());
            set("max_batch", rectangular.max_batch.into());
            set("max_batch_tkv", rectangular.max_batch_tkv.into());
            set("interleave", rectangular.interleave.into());
            set("rules", json!(rectangular.rules));
            set("pausing", rectangular.pausing.into());
            set("long_output_first", rectangular.long_output_first.into());
        }
        _ => {}
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

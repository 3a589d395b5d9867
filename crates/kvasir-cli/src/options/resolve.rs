//! Settles options into consistent limits, cache and policy, or reports the two options that
//! conflict.

use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::facts::Facts;
use crate::options::policy::PolicyKind;
use crate::options::rules::{positive, rule, share};
use crate::options::switch::Switch;
use kvasir_engine::{Core, Limits, Order, Policy};
use kvasir_kv::{Cache, CacheConfig, CacheKind, Rings};
use kvasir_sim::StaticShape;
use serde_json::{Map, Value, json};

/// Maximum concurrent sequences.
const MOST_SEQUENCES: u32 = 1 << 16;

/// Maximum tokens of a sequence or a step.
const MOST_TOKENS: u32 = 1 << 30;

/// Maximum blocks of a pool.
const MOST_BLOCKS: u32 = 1 << 24;

/// Consistent options.
pub(crate) struct ResolvedOptions {
    pub(crate) limits: Limits,
    /// `None` if it is left to the backend.
    pub(crate) overlap: Option<bool>,
    pub(crate) static_shape: Option<StaticShape>,
    /// Configuration for the trace page.
    pub(crate) setup: Map<String, Value>,
    order: Order,
    policy: Box<dyn Policy>,
    cache: Box<dyn Cache>,
}

impl ResolvedOptions {
    pub(crate) fn core(self) -> Core {
        Core::new(self.limits, self.order, self.policy, self.cache)
    }
}

impl Options {
    /// Builds limits, cache and policy; an error names the conflicting options.
    pub(crate) fn resolve(&self, facts: &Facts) -> Result<ResolvedOptions, Failure> {
        let policy = self.policy.unwrap_or(PolicyKind::Chunked);
        self.check_policy(policy)?;
        let kind = self.cache.unwrap_or(match policy {
            PolicyKind::Rectangular => CacheKind::Paged,
            _ => CacheKind::Radix,
        });
        let in_blocks = kind.is_block_based();
        let one_stream = kind.holds_one_sequence();
        rule(in_blocks || policy != PolicyKind::Rectangular, || {
            format!(
                "--policy rectangular cannot be combined with --cache {kind}: it needs blocks (paged or radix)"
            )
        })?;
        rule(in_blocks || self.block_size.is_none_or(|size| size == 1), || {
            format!("--block-size cannot be combined with --cache {kind}: it hands out single slots")
        })?;
        rule(in_blocks || self.prefix_cache.is_none(), || {
            format!("--prefix-cache cannot be combined with --cache {kind}: it keeps no prefixes")
        })?;
        rule(!one_stream || self.max_num_seqs.is_none_or(|n| n == 1), || {
            format!("--max-num-seqs cannot be combined with --cache {kind}: it holds one sequence")
        })?;
        rule(facts.has_graphs || !facts.batch_sizes.is_empty() || self.graph_max_batch.is_none(), || {
            "--graph-max-batch needs a device with captured graphs, that of `kvasir sim`, or --batch-sizes"
                .into()
        })?;
        let limits = self.limits(facts, one_stream, in_blocks)?;
        self.check_batch_sizes(facts, &limits)?;
        let rings = self.rings(kind, facts, limits.max_num_batched_tokens)?;
        let block = match in_blocks {
            true if policy == PolicyKind::Rectangular => positive("block-size", self.block_size, 64)?,
            true => positive("block-size", self.block_size, 16)?,
            false => 1,
        };
        rule(block <= 256, || format!("--block-size {block} is not 1 to 256"))?;
        let capacity = self.capacity(facts, block)?;
        let dummy = policy == PolicyKind::Rectangular;
        // Ended sequences may still be named by steps in flight.
        let max_sequences = limits.max_num_seqs.saturating_mul(2).saturating_add(64);
        let sharing = limits.prefix_cache;
        let config = CacheConfig {
            max_sequences,
            block_size: block,
            sharing,
            dummy,
            rings,
            ..CacheConfig::new(capacity)
        };
        let named = |error| Failure::usage(format!("--cache {kind} --kv-capacity {capacity}: {error}"));
        let cache = kvasir_kv::build(kind, &config).map_err(named)?;
        let rectangular = self.rectangular();
        if dummy {
            rectangular.check(block, &limits).map_err(Failure::usage)?;
        }
        let mut setup = json!({
            "policy": policy.to_string(), "cache": kind, "order": self.order.unwrap_or_default().to_string(),
            "block_size": block, "capacity": cache.capacity(), "max_model_len": limits.max_model_len,
            "max_num_seqs": limits.max_num_seqs, "max_num_batched_tokens": limits.max_num_batched_tokens,
        });
        if dummy {
            setup["dummy_blocks"] = 1.into();
            setup["rectangular"] = true.into();
            setup["chunk_size"] = rectangular.chunk_size.into();
            setup["max_batch_tkv"] = rectangular.max_batch_tkv.into();
        }
        Ok(ResolvedOptions {
            static_shape: dummy.then_some(StaticShape {
                block,
                chunk: rectangular.chunk_size,
                max_rows: rectangular.max_batch,
                max_model_len: limits.max_model_len,
                max_volume: rectangular.max_batch_tkv,
            }),
            policy: self.build_policy(policy, rectangular)?,
            order: self.order.unwrap_or_default(),
            overlap: self.overlap.map(Switch::is_on),
            setup: match setup {
                Value::Object(map) => map,
                _ => Map::new(),
            },
            limits,
            cache,
        })
    }

    /// Checks the batch sizes of the executor against the limits of a step.
    fn check_batch_sizes(&self, facts: &Facts, limits: &Limits) -> Result<(), Failure> {
        let (tokens, most) = (limits.max_num_batched_tokens, limits.graph_max_batch);
        let Some(smallest) = facts.batch_sizes.first() else { return Ok(()) };
        rule(*smallest <= most, || {
            format!("--graph-max-batch {most} is below every size of --batch-sizes, {smallest} and up")
        })?;
        let used = facts.batch_sizes.iter().filter(|size| **size <= most);
        let largest = used.max().copied().unwrap_or(0);
        rule(largest <= tokens, || {
            format!("--batch-sizes {largest} exceeds --max-num-batched-tokens {tokens}")
        })
    }

    fn rings(&self, kind: CacheKind, facts: &Facts, longest: u32) -> Result<Option<Rings>, Failure> {
        if !self.rings.is_some_and(Switch::is_on) {
            return Ok(None);
        }
        rule(kind == CacheKind::Contiguous, || {
            format!("--rings on cannot be combined with --cache {kind}: contiguous has them")
        })?;
        let rings = Rings::new(facts.windows.clone(), longest);
        let rings = rings.map_err(|why| Failure::usage(format!("--rings on: {why}")))?;
        rule(facts.has_rings, || "--rings on needs the cpu backend: the others have no ring buffers".into())?;
        Ok(Some(rings))
    }

    fn capacity(&self, facts: &Facts, block: u32) -> Result<u32, Failure> {
        let most = MOST_BLOCKS.saturating_mul(block);
        rule(self.kv_capacity.is_some() || facts.slots >= block, || match self.memory_utilization {
            Some(share) => {
                format!("--memory-utilization {share} leaves no room for a block of {block} slots")
            }
            None => {
                format!("the memory beside the weights holds no block of {block} slots: give --kv-capacity")
            }
        })?;
        let capacity = positive("kv-capacity", self.kv_capacity, facts.slots.min(most))?;
        rule(capacity >= block, || {
            format!("--kv-capacity {capacity} is less than a block of {block} slots")
        })?;
        rule(capacity <= most, || {
            format!("--kv-capacity {capacity} is more than {MOST_BLOCKS} blocks of {block} slots")
        })?;
        Ok(capacity)
    }

    fn limits(&self, facts: &Facts, one_stream: bool, in_blocks: bool) -> Result<Limits, Failure> {
        let max_model_len = positive("max-model-len", self.max_model_len, facts.max_model_len)?;
        rule(max_model_len >= 2, || {
            format!(
                "--max-model-len {max_model_len} leaves no room for a token of a prompt and one of an answer"
            )
        })?;
        rule(max_model_len <= facts.max_model_len || facts.is_simulated, || {
            format!(
                "--max-model-len {max_model_len} is more than the {} positions that the model has",
                facts.max_model_len
            )
        })?;
        let budget = if facts.is_cpu { 2048 } else { 16384 };
        let max_num_seqs = positive("max-num-seqs", self.max_num_seqs, if one_stream { 1 } else { 512 })?;
        let max_num_batched_tokens = positive("max-num-batched-tokens", self.max_num_batched_tokens, budget)?;
        for (name, value, most) in [
            ("max-num-seqs", max_num_seqs, MOST_SEQUENCES),
            ("max-model-len", max_model_len, MOST_TOKENS),
            ("max-num-batched-tokens", max_num_batched_tokens, MOST_TOKENS),
        ] {
            rule(value <= most, || format!("--{name} {value} is more than {most}"))?;
        }
        Ok(Limits {
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            watermark: (share("watermark", self.watermark, 0.0)? * 1000.0).round() as u32,
            prefix_cache: in_blocks && self.prefix_cache.is_none_or(Switch::is_on),
            graph_max_batch: self.graph_max_batch.unwrap_or(Limits::default().graph_max_batch),
            ..Limits::default()
        })
    }
}

//! The options that `serve`, `chat`, `generate`, `bench` and `sim` have in common, defined once: on the command line,
//! as `KVASIR_…` in the environment, and by the same names in files.

use crate::{
    cmd::Failure,
    facts::Facts,
    switch::{Switch, word},
};
use kvasir_engine::{
    Chunked, Chunking, Core, Limits, Mixing, Order, Policy, PrefillFirst, Rectangular, RectangularConfig,
    StepTarget, rectangular::Rules,
};
use kvasir_kv::{Cache, CacheConfig, CacheKind, Rings};
use kvasir_sim::StaticShape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt::Display;

/// `--policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PolicyKind {
    PrefillFirst,
    Chunked,
    Rectangular,
}

impl Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PrefillFirst => "prefill-first",
            Self::Chunked => "chunked",
            Self::Rectangular => "rectangular",
        })
    }
}

/// What was asked for; what is absent has a default that depends on the rest.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Options {
    /// Bookkeeping of K and V: contiguous, cells, tree, paged or radix [default: radix; paged with rectangular; generate contiguous]
    #[arg(long, env = "KVASIR_CACHE", value_parser = word::<CacheKind>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheKind>,
    /// Who runs next: prefill-first, chunked or rectangular [default: chunked]
    #[arg(long, env = "KVASIR_POLICY", value_parser = word::<PolicyKind>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyKind>,
    /// Order of the queue: fcfs, priority or fair [default: fcfs]
    #[arg(long, env = "KVASIR_ORDER", value_parser = word::<Order>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Order>,
    /// Slots of the pool, a token each [default: what memory holds; chat and serve at most 32768; generate as many as it needs]
    #[arg(long, env = "KVASIR_KV_CAPACITY", value_name = "SLOTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_capacity: Option<u32>,
    /// Share of the memory that weights leave which the pool may take [default: 0.9]
    #[arg(long, env = "KVASIR_MEMORY_UTILIZATION", value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_utilization: Option<f64>,
    /// Slots that are handed out together, 1 to 256 [default: 16; 64 with rectangular]
    #[arg(long, env = "KVASIR_BLOCK_SIZE", value_name = "SLOTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    /// With --cache contiguous: layers with a window keep no more than it and a step reach, on or off [default: off]
    #[arg(long, env = "KVASIR_RINGS", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    rings: Option<Switch>,
    /// Whether prompts find what earlier requests left in paged or radix, on or off [default: on]
    #[arg(long, env = "KVASIR_PREFIX_CACHE", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_cache: Option<Switch>,
    /// Sequences that run at once [default: 512; 1 with contiguous and tree]
    #[arg(long, env = "KVASIR_MAX_NUM_SEQS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_num_seqs: Option<u32>,
    /// Tokens of one step [default: 2048; sim 16384 unless its machine is a CPU]
    #[arg(long, env = "KVASIR_MAX_NUM_BATCHED_TOKENS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_num_batched_tokens: Option<u32>,
    /// Prompt and answer together [default: the model's, at most the pool]
    #[arg(long, env = "KVASIR_MAX_MODEL_LEN", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
    /// Newcomers wait until the oldest has waited so many times the last prefill's time [default: 0]
    #[arg(long, env = "KVASIR_DELAY_FACTOR", value_name = "F")]
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_factor: Option<f64>,
    /// Cut prompts that do not fit a step, on or off [default: on]
    #[arg(long, env = "KVASIR_CHUNKED_PREFILL", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    chunked_prefill: Option<Switch>,
    /// Tokens of one prompt per step at most [default: none]
    #[arg(long, env = "KVASIR_LONG_PREFILL_CAP", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    long_prefill_cap: Option<u32>,
    /// Share of the pool that admission leaves free [default: 0]
    #[arg(long, env = "KVASIR_WATERMARK", value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    watermark: Option<f64>,
    /// Positions of a prefill step, whole blocks [default: 512]
    #[arg(long, env = "KVASIR_CHUNK_SIZE", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_size: Option<u32>,
    /// No two prefill steps in a row while somebody decodes, on or off [default: on]
    #[arg(long, env = "KVASIR_INTERLEAVE", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    interleave: Option<Switch>,
    /// Rows times largest tkv at most [default: 131072]
    #[arg(long, env = "KVASIR_MAX_BATCH_TKV", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_batch_tkv: Option<u64>,
    /// Rows of a decode step at most [default: 32]
    #[arg(long, env = "KVASIR_MAX_BATCH", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_batch: Option<u32>,
    /// The document's rules or the later code's [default: document]
    #[arg(long, env = "KVASIR_RULES", value_parser = word::<Rules>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Rules>,
    /// Admit without looking ahead and let decodes take turns, on or off [default: off]
    #[arg(long, env = "KVASIR_PAUSING", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pausing: Option<Switch>,
    /// With --pausing on: who has decoded most goes first, on or off [default: off]
    #[arg(long, env = "KVASIR_LONG_OUTPUT_FIRST", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    long_output_first: Option<Switch>,
    /// Make the next step while one runs, on or off; shows with --backend sim only: a CPU is busy with the step itself [default: on]
    #[arg(long, env = "KVASIR_OVERLAP", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<Switch>,
    /// Rows of the largest recorded decode step [default: 256]
    #[arg(long, env = "KVASIR_GRAPH_MAX_BATCH", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    graph_max_batch: Option<u32>,
    /// Prompt tokens of one step at most [default: 8192]
    #[arg(long, env = "KVASIR_MAX_EXTEND_TOKENS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_extend_tokens: Option<u32>,
    /// Prompts and decodes in one step, on or off [default: off; serve on]
    #[arg(long, env = "KVASIR_MIXED", value_parser = word::<Switch>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    mixed: Option<Switch>,
    /// With --mixed on: milliseconds that a step with decodes should take at most [default: none]
    #[arg(long, env = "KVASIR_STEP_TARGET_MS", value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    step_target_ms: Option<f64>,
    /// With --mixed on: times that a step with decodes may take of what they take alone [default: none; serve 4]
    #[arg(long, env = "KVASIR_STEP_TARGET_TIMES", value_name = "F")]
    #[serde(skip_serializing_if = "Option::is_none")]
    step_target_times: Option<f64>,
}

/// What a server's steps take at most of what their decodes take alone, unless told otherwise.
pub(crate) const SERVING_TIMES: f64 = 4.0;

/// Sequences that one engine may run at once.
const MOST_SEQUENCES: u32 = 1 << 16;

/// Tokens that a sequence or a step may have.
const MOST_TOKENS: u32 = 1 << 30;

/// Blocks that one pool may have.
const MOST_BLOCKS: u32 = 1 << 24;

/// Options that fit together.
pub(crate) struct Settled {
    pub(crate) limits: Limits,
    pub(crate) overlap: bool,
    pub(crate) graph_max_batch: u32,
    pub(crate) static_shape: Option<StaticShape>,
    /// The keys that the trace page knows.
    pub(crate) setup: Map<String, Value>,
    order: Order,
    policy: Box<dyn Policy>,
    cache: Box<dyn Cache>,
}

impl Settled {
    pub(crate) fn core(self) -> Core {
        Core::new(self.limits, self.order, self.policy, self.cache)
    }
}

fn rule(holds: bool, why: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::usage(why())) }
}

fn positive(name: &str, value: Option<u32>, default: u32) -> Result<u32, Failure> {
    rule(value != Some(0), || format!("--{name} must be at least 1"))?;
    Ok(value.unwrap_or(default))
}

fn share(name: &str, value: Option<f64>, default: f64) -> Result<f64, Failure> {
    let value = value.unwrap_or(default);
    rule((0.0..=1.0).contains(&value), || format!("--{name} {value} is not between 0 and 1"))?;
    Ok(value)
}

impl Options {
    /// Options by the names of the command line, from a file.
    pub(crate) fn from_map(map: &Map<String, Value>) -> Result<Self, Failure> {
        for (name, value) in map {
            // One by one first, so that the error can name it.
            let alone = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
            let read = serde_json::from_value::<Self>(alone);
            read.map_err(|error| Failure::usage(format!("options.{name}: {error}")))?;
        }
        let read = serde_json::from_value(Value::Object(map.clone()));
        read.map_err(|error| Failure::usage(format!("options: {error}")))
    }

    /// These where they are given, else those of `base`.
    pub(crate) fn over(&self, base: &Self) -> Result<Self, Failure> {
        let map = |options: &Self| match serde_json::to_value(options) {
            Ok(Value::Object(map)) => Ok(map),
            _ => Err(Failure::usage("options: not a finite number")),
        };
        let mut merged = map(base)?;
        merged.extend(map(self)?);
        // What is not given is not written, so a null was a number that is none.
        if let Some((name, _)) = merged.iter().find(|(_, value)| value.is_null()) {
            return Err(Failure::usage(format!("--{name} is not a finite number")));
        }
        Self::from_map(&merged)
    }

    /// With what a server of many wants where nothing was said: prompts beside decodes, in chunks that keep a decode step
    /// from taking more than a few times as long.
    pub(crate) fn for_serving(mut self) -> Self {
        let is_chunked = self.policy.is_none_or(|policy| policy == PolicyKind::Chunked);
        if is_chunked && *self.mixed.get_or_insert(Switch::On) == Switch::On && self.step_target_ms.is_none()
        {
            self.step_target_times.get_or_insert(SERVING_TIMES);
        }
        self
    }

    /// Whether a policy was asked for that needs a cache with blocks.
    pub(crate) fn needs_blocks(&self) -> bool {
        self.policy == Some(PolicyKind::Rectangular)
    }

    /// Share of the memory for the pool.
    pub(crate) fn memory_share(&self) -> Result<f64, Failure> {
        rule(self.memory_utilization.is_none() || self.kv_capacity.is_none(), || {
            "--memory-utilization cannot be combined with --kv-capacity".into()
        })?;
        share("memory-utilization", self.memory_utilization, 0.9)
    }

    /// Puts everything together, or says which two things do not go together.
    pub(crate) fn settle(&self, facts: &Facts) -> Result<Settled, Failure> {
        let policy = self.policy.unwrap_or(PolicyKind::Chunked);
        self.check_policy(policy)?;
        let kind = self.cache.unwrap_or(match policy {
            PolicyKind::Rectangular => CacheKind::Paged,
            _ => CacheKind::Radix,
        });
        let in_blocks = matches!(kind, CacheKind::Paged | CacheKind::Radix);
        let one_stream = matches!(kind, CacheKind::Contiguous | CacheKind::Tree);
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
        let limits = self.limits(facts, one_stream, in_blocks)?;
        let rings = self.rings(kind, facts, limits.max_num_batched_tokens)?;
        let block = match in_blocks {
            true if policy == PolicyKind::Rectangular => positive("block-size", self.block_size, 64)?,
            true => positive("block-size", self.block_size, 16)?,
            false => 1,
        };
        rule(block <= 256, || format!("--block-size {block} is not 1 to 256"))?;
        let capacity = self.capacity(facts, block)?;
        let dummy = policy == PolicyKind::Rectangular;
        // Sequences that have ended may still be named by steps in flight.
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
        Ok(Settled {
            static_shape: dummy.then_some(StaticShape {
                block,
                chunk: rectangular.chunk_size,
                max_rows: rectangular.max_batch,
                max_model_len: limits.max_model_len,
                max_volume: rectangular.max_batch_tkv,
            }),
            policy: self.build_policy(policy, rectangular)?,
            order: self.order.unwrap_or_default(),
            overlap: self.overlap.is_none_or(Switch::is_on),
            graph_max_batch: self.graph_max_batch.unwrap_or(256),
            setup: match setup {
                Value::Object(map) => map,
                _ => Map::new(),
            },
            limits,
            cache,
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
        rings.map(Some).map_err(|why| Failure::usage(format!("--rings on: {why}")))
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
            ..Limits::default()
        })
    }

    /// Refuses what belongs to another policy.
    fn check_policy(&self, policy: PolicyKind) -> Result<(), Failure> {
        use PolicyKind::{Chunked, PrefillFirst, Rectangular};
        let given = [
            ("delay-factor", self.delay_factor.is_some(), PrefillFirst),
            ("chunked-prefill", self.chunked_prefill.is_some(), PrefillFirst),
            ("long-prefill-cap", self.long_prefill_cap.is_some(), PrefillFirst),
            ("max-extend-tokens", self.max_extend_tokens.is_some(), Chunked),
            ("mixed", self.mixed.is_some(), Chunked),
            ("step-target-ms", self.step_target_ms.is_some(), Chunked),
            ("step-target-times", self.step_target_times.is_some(), Chunked),
            ("chunk-size", self.chunk_size.is_some(), Rectangular),
            ("interleave", self.interleave.is_some(), Rectangular),
            ("max-batch-tkv", self.max_batch_tkv.is_some(), Rectangular),
            ("max-batch", self.max_batch.is_some(), Rectangular),
            ("rules", self.rules.is_some(), Rectangular),
            ("pausing", self.pausing.is_some(), Rectangular),
            ("long-output-first", self.long_output_first.is_some(), Rectangular),
        ];
        for (name, is_given, owner) in given {
            rule(!is_given || owner == policy, || {
                format!("--{name} belongs to --policy {owner} and cannot be combined with --policy {policy}")
            })?;
        }
        Ok(())
    }

    fn rectangular(&self) -> RectangularConfig {
        let standard = RectangularConfig::default();
        RectangularConfig {
            chunk_size: self.chunk_size.unwrap_or(standard.chunk_size),
            max_batch: self.max_batch.unwrap_or(standard.max_batch),
            max_batch_tkv: self.max_batch_tkv.unwrap_or(standard.max_batch_tkv),
            interleave: self.interleave.is_none_or(Switch::is_on),
            rules: self.rules.unwrap_or(standard.rules),
            pausing: self.pausing.is_some_and(Switch::is_on),
            long_output_first: self.long_output_first.is_some_and(Switch::is_on),
        }
    }

    fn step_target(&self) -> Result<Option<StepTarget>, Failure> {
        let (ms, times) = (self.step_target_ms, self.step_target_times);
        rule(ms.is_none() || times.is_none(), || {
            "--step-target-ms cannot be combined with --step-target-times".into()
        })?;
        rule(ms.is_none_or(|ms| ms > 0.0 && ms < 1e9), || "--step-target-ms must be above 0".into())?;
        rule(times.is_none_or(|times| (1.0..=1000.0).contains(&times)), || {
            "--step-target-times must be 1 to 1000".into()
        })?;
        let time = ms.map(|ms| StepTarget::Time((ms * 1e6) as u64));
        Ok(time.or(times.map(|times| StepTarget::Hundredths((times * 100.0) as u32))))
    }

    fn build_policy(
        &self,
        kind: PolicyKind,
        rectangular: RectangularConfig,
    ) -> Result<Box<dyn Policy>, Failure> {
        Ok(match kind {
            PolicyKind::PrefillFirst => {
                let delay = self.delay_factor.unwrap_or(0.0);
                rule(delay.is_finite() && delay >= 0.0, || format!("--delay-factor {delay} is below 0"))?;
                let chunked = self.chunked_prefill.is_none_or(Switch::is_on);
                rule(chunked || self.long_prefill_cap.is_none(), || {
                    "--long-prefill-cap cannot be combined with --chunked-prefill off".into()
                })?;
                rule(self.long_prefill_cap != Some(0), || "--long-prefill-cap must be at least 1".into())?;
                let chunking = match chunked {
                    true => Chunking::On { cap: self.long_prefill_cap },
                    false => Chunking::Off,
                };
                Box::new(PrefillFirst::new(chunking, delay))
            }
            PolicyKind::Chunked => {
                let mixed = self.mixed.is_some_and(Switch::is_on);
                let mixing = match mixed {
                    true => Mixing::On { target: self.step_target()? },
                    false => {
                        rule(self.step_target_ms.is_none(), || "--step-target-ms needs --mixed on".into())?;
                        rule(self.step_target_times.is_none(), || {
                            "--step-target-times needs --mixed on".into()
                        })?;
                        Mixing::Off
                    }
                };
                Box::new(Chunked::new(positive("max-extend-tokens", self.max_extend_tokens, 8192)?, mixing))
            }
            PolicyKind::Rectangular => Box::new(Rectangular::new(rectangular)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_fills_in_what_was_not_said_and_nothing_else() {
        let served = |mixed, ms, times, policy| {
            let options =
                Options { mixed, step_target_ms: ms, step_target_times: times, policy, ..Options::default() };
            let served = options.for_serving();
            (served.mixed, served.step_target_ms, served.step_target_times)
        };
        let on = Some(Switch::On);
        assert_eq!(served(None, None, None, None), (on, None, Some(SERVING_TIMES)));
        assert_eq!(served(on, None, None, None), (on, None, Some(SERVING_TIMES)));
        assert_eq!(served(None, Some(50.0), None, None), (on, Some(50.0), None));
        assert_eq!(served(None, None, Some(2.0), None), (on, None, Some(2.0)));
        assert_eq!(served(Some(Switch::Off), None, None, None), (Some(Switch::Off), None, None));
        assert_eq!(served(None, None, None, Some(PolicyKind::Rectangular)), (None, None, None));
    }
}

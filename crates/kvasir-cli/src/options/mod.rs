//! Engine options shared by `serve`, `chat`, `generate`, `bench` and `sim`: flags, `KVASIR_…`
//! variables and file keys, defined once.

pub(crate) mod byte_size;
pub(crate) mod client_rules;
pub(crate) mod fleet;
pub(crate) mod host;
pub(crate) mod hub_fetch;
pub(crate) mod keys;
pub(crate) mod kv_events;
pub(crate) mod limits;
pub(crate) mod machine_file;
pub(crate) mod model;
pub(crate) mod policy;
pub(crate) mod reports;
pub(crate) mod resolve;
pub(crate) mod rules;
pub(crate) mod samplers;
pub(crate) mod sampling;
pub(crate) mod sampling_defaults;
pub(crate) mod sim_fleet;
pub(crate) mod structured_output;
pub(crate) mod switch;
pub(crate) mod workload;

use crate::io::failure::Failure;
use crate::options::byte_size::ByteSize;
use crate::options::policy::PolicyKind;
use crate::options::rules::rule;
use crate::options::switch::{Switch, word};
use kvasir_engine::{Order, rectangular::Rules};
use kvasir_kv::CacheKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Engine options. What is absent has a default that depends on the rest.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Options {
    #[command(flatten)]
    #[serde(flatten)]
    sequence: SequenceOptions,
    #[command(flatten)]
    #[serde(flatten)]
    batching: BatchingOptions,
}

/// Engine options that matter to a single request.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct SequenceOptions {
    /// KV cache: contiguous, cells, tree, paged or radix [default: radix; paged with rectangular; generate contiguous]
    #[arg(long, env = "KVASIR_CACHE", value_parser = word::<CacheKind>)]
    pub(super) cache: Option<CacheKind>,
    /// Scheduling policy: prefill-first, chunked or rectangular [default: chunked]
    #[arg(long, env = "KVASIR_POLICY", value_parser = word::<PolicyKind>)]
    pub(super) policy: Option<PolicyKind>,
    /// KV cache capacity in slots of one token [default: what memory holds; chat and serve at most 32768; generate as many as it needs]
    #[arg(long, env = "KVASIR_KV_CAPACITY", value_name = "SLOTS")]
    pub(super) kv_capacity: Option<u32>,
    /// Share of the memory left by the weights that K/V and recurrent states may use [default: 0.9]
    #[arg(long, env = "KVASIR_MEMORY_UTILIZATION", value_name = "SHARE", value_parser = finite)]
    pub(super) memory_utilization: Option<f64>,
    /// Let --kv-capacity exceed what the free memory holds, on or off: memory is committed as it is used [default: off]
    #[arg(long, env = "KVASIR_OVERCOMMIT", value_parser = word::<Switch>)]
    pub(super) overcommit: Option<Switch>,
    /// Memory for checkpoints of recurrent layers, such as 512MB or 2GiB [default: an eighth of the memory that K/V and states may use]
    #[arg(long, env = "KVASIR_STATE_MEMORY", value_name = "BYTES", value_parser = word::<ByteSize>)]
    pub(super) state_memory: Option<ByteSize>,
    /// Distance of regular checkpoints of recurrent layers in tokens, 0 for none [default: 256 to 4096, by the size of a checkpoint]
    #[arg(long, env = "KVASIR_STATE_INTERVAL", value_name = "TOKENS")]
    pub(super) state_interval: Option<u32>,
    /// Slots per KV cache block, 1 to 256 [default: 16; 64 with rectangular]
    #[arg(long, env = "KVASIR_BLOCK_SIZE", value_name = "SLOTS")]
    pub(super) block_size: Option<u32>,
    /// With --cache contiguous on the cpu backend: ring buffers for sliding-window layers, on or off [default: off]
    #[arg(long, env = "KVASIR_RINGS", value_parser = word::<Switch>)]
    pub(super) rings: Option<Switch>,
    /// Maximum tokens of a step [default: 2048; sim 16384 unless its machine is a CPU]
    #[arg(long, env = "KVASIR_MAX_NUM_BATCHED_TOKENS", value_name = "N")]
    pub(super) max_num_batched_tokens: Option<u32>,
    /// Maximum prompt plus answer tokens [default: the model's, at most the capacity]
    #[arg(long, env = "KVASIR_MAX_MODEL_LEN", value_name = "N")]
    pub(super) max_model_len: Option<u32>,
    /// Chunked prefill of prompts that exceed a step, on or off [default: on]
    #[arg(long, env = "KVASIR_CHUNKED_PREFILL", value_parser = word::<Switch>)]
    pub(super) chunked_prefill: Option<Switch>,
    /// Maximum tokens of one prompt per step [default: none]
    #[arg(long, env = "KVASIR_LONG_PREFILL_CAP", value_name = "N")]
    pub(super) long_prefill_cap: Option<u32>,
    /// Prefill chunk size in positions, a multiple of the block size [default: 512]
    #[arg(long, env = "KVASIR_CHUNK_SIZE", value_name = "N")]
    pub(super) chunk_size: Option<u32>,
    /// Maximum rows times tkv of a decode batch [default: 131072]
    #[arg(long, env = "KVASIR_MAX_BATCH_TKV", value_name = "N")]
    pub(super) max_batch_tkv: Option<u64>,
    /// Rule set: document or later [default: document]
    #[arg(long, env = "KVASIR_RULES", value_parser = word::<Rules>)]
    pub(super) rules: Option<Rules>,
    /// Overlap scheduling: schedule the next step while one runs, on or off [default: off on the CPU, on with --backend sim]
    #[arg(long, env = "KVASIR_OVERLAP", value_parser = word::<Switch>)]
    pub(super) overlap: Option<Switch>,
    /// Largest decode batch that runs as a captured graph (`kvasir sim`), or is padded to a size of --batch-sizes [default: 256]
    #[arg(long, env = "KVASIR_GRAPH_MAX_BATCH", value_name = "N")]
    pub(super) graph_max_batch: Option<u32>,
    /// Maximum prompt tokens of a step [default: 8192]
    #[arg(long, env = "KVASIR_MAX_EXTEND_TOKENS", value_name = "N")]
    pub(super) max_extend_tokens: Option<u32>,
}

/// Engine options that matter only where several requests run.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct BatchingOptions {
    /// Order of the queue: fcfs, priority or fair [default: fcfs]
    #[arg(long, env = "KVASIR_ORDER", value_parser = word::<Order>)]
    pub(super) order: Option<Order>,
    /// Prefix caching in paged and radix, on or off [default: on]
    #[arg(long, env = "KVASIR_PREFIX_CACHE", value_parser = word::<Switch>)]
    pub(super) prefix_cache: Option<Switch>,
    /// Maximum running sequences [default: 512; 1 with contiguous and tree]
    #[arg(long, env = "KVASIR_MAX_NUM_SEQS", value_name = "N")]
    pub(super) max_num_seqs: Option<u32>,
    /// Defer new prompts until the oldest has waited this many times the last prefill's duration [default: 0]
    #[arg(long, env = "KVASIR_DELAY_FACTOR", value_name = "F", value_parser = finite)]
    pub(super) delay_factor: Option<f64>,
    /// Share of the KV cache that admission keeps free [default: 0]
    #[arg(long, env = "KVASIR_WATERMARK", value_name = "SHARE", value_parser = finite)]
    pub(super) watermark: Option<f64>,
    /// Alternate prefill and decode steps while sequences decode, on or off [default: on]
    #[arg(long, env = "KVASIR_INTERLEAVE", value_parser = word::<Switch>)]
    pub(super) interleave: Option<Switch>,
    /// Maximum rows of a decode step [default: 32]
    #[arg(long, env = "KVASIR_MAX_BATCH", value_name = "N")]
    pub(super) max_batch: Option<u32>,
    /// Admit without looking ahead, and rotate decodes when not all fit, on or off [default: off]
    #[arg(long, env = "KVASIR_PAUSING", value_parser = word::<Switch>)]
    pub(super) pausing: Option<Switch>,
    /// With --pausing on: prefer the sequence with the most output tokens, on or off [default: off]
    #[arg(long, env = "KVASIR_LONG_OUTPUT_FIRST", value_parser = word::<Switch>)]
    pub(super) long_output_first: Option<Switch>,
    /// Mix prefill chunks and decodes in one step, on or off [default: off; serve on]
    #[arg(long, env = "KVASIR_MIXED", value_parser = word::<Switch>)]
    pub(super) mixed: Option<Switch>,
    /// With --mixed on: target duration in milliseconds of a step with decodes [default: none]
    #[arg(long, env = "KVASIR_STEP_TARGET_MS", value_name = "MS", value_parser = finite)]
    pub(super) step_target_ms: Option<f64>,
    /// With --mixed on: target duration of a step with decodes, relative to the decodes alone [default: none; serve 4]
    #[arg(long, env = "KVASIR_STEP_TARGET_TIMES", value_name = "F", value_parser = finite)]
    pub(super) step_target_times: Option<f64>,
}

impl From<SequenceOptions> for Options {
    fn from(sequence: SequenceOptions) -> Self {
        Self { sequence, ..Self::default() }
    }
}

fn finite(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "not a finite number".into())
}

/// Default of `--step-target-times` when serving: maximum step time relative to decodes alone.
pub(crate) const SERVING_TIMES: f64 = 4.0;

impl Options {
    /// Parses options by their command line names, from a file.
    pub(crate) fn from_map(map: &Map<String, Value>) -> Result<Self, Failure> {
        let known = serde_json::to_value(Self::default()).map_err(Failure::usage)?;
        for (name, value) in map {
            rule(known.get(name).is_some(), || format!("options.{name}: unknown option"))?;
            // Each alone first, so that the error can name it.
            let alone = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
            let read = serde_json::from_value::<Self>(alone);
            read.map_err(|error| Failure::usage(format!("options.{name}: {error}")))?;
        }
        let read = serde_json::from_value(Value::Object(map.clone()));
        read.map_err(|error| Failure::usage(format!("options: {error}")))
    }

    /// Overrides `base` with the given options.
    pub(crate) fn over(&self, base: &Self) -> Result<Self, Failure> {
        let given = |options: &Self| {
            let fields = serde_json::to_value(options).map_err(Failure::usage)?;
            let fields = fields.as_object().cloned().unwrap_or_default();
            Ok::<_, Failure>(fields.into_iter().filter(|(_, value)| !value.is_null()))
        };
        Self::from_map(&given(base)?.chain(given(self)?).collect())
    }

    /// Applies serving defaults: mixed batches (chunked prefill alongside decodes), with chunks
    /// that bound the step time.
    pub(crate) fn for_serving(mut self) -> Self {
        let Self { sequence, batching } = &mut self;
        let is_chunked = sequence.policy.is_none_or(|policy| policy == PolicyKind::Chunked);
        let is_mixed = is_chunked && batching.mixed.get_or_insert(Switch::On).is_on();
        if is_mixed && batching.step_target_ms.is_none() {
            batching.step_target_times.get_or_insert(SERVING_TIMES);
        }
        self
    }

    /// The options that matter to a single request.
    pub(crate) fn sequence(&self) -> &SequenceOptions {
        &self.sequence
    }

    /// Whether the queue is ordered by the priority of requests.
    pub(crate) fn orders_by_priority(&self) -> bool {
        self.batching.order == Some(Order::Priority)
    }

    pub(crate) fn shares_by_key(&self) -> bool {
        self.batching.order == Some(Order::Fair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serving_defaults_fill_only_absent_options() {
        let served = |mixed, ms, times, policy| {
            let sequence = SequenceOptions { policy, ..SequenceOptions::default() };
            let batching = BatchingOptions {
                mixed,
                step_target_ms: ms,
                step_target_times: times,
                ..BatchingOptions::default()
            };
            let served = Options { sequence, batching }.for_serving().batching;
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

//! Server metrics (Prometheus): latency histograms, token counters, KV cache usage, admission
//! rejections.
//!
//! Updates from the engine's thread take no lock. Knows no request.

mod deferral_group;
pub(crate) mod engine_metrics;
mod llama_cpp;
pub(crate) mod page;
pub(crate) mod per_key;
pub(crate) mod process;
pub(crate) mod prometheus;
pub(crate) mod tokenizers;
pub(crate) mod transfers;

pub use crate::metrics::engine_metrics::EngineMetrics;
use crate::metrics::engine_metrics::ReplicaMetrics;
use crate::metrics::per_key::{KeyMetrics, PerKey};
pub use crate::metrics::prometheus::Names;
use crate::metrics::prometheus::{
    COUNT_BUCKETS, Counter, Gauge, Histogram, NANOS_PER_SECOND, REQUEST_BUCKETS, TOKEN_BUCKETS,
};
use kvasir_engine::{Finish, Nanos, RankLoad, Refusal, Summary};
use std::sync::Arc;

/// All metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    /// Metrics of the engine, or sums over all replicas.
    pub(crate) engine: Arc<EngineMetrics>,
    /// Metrics by replica, if engines run in other processes.
    pub(crate) replicas: Option<ReplicaMetrics>,
    prompt_tokens: Counter,
    /// Tokens of the longest finished sequence.
    longest_sequence: Gauge,
    finished: [Counter; FINISHED.len()],
    rejected: [Counter; REJECTED.len()],
    ttft: Histogram,
    inter_token: Histogram,
    tpot: Histogram,
    e2e: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompts: Histogram,
    answers: Histogram,
    per_key: PerKey,
}

/// `finished_reason` labels, as other servers' dashboards expect them.
const FINISHED: [&str; 5] = ["stop", "length", "abort", "error", "refused"];
/// Labels of rejection reasons, in the order of [`Rejected`].
const REJECTED: [&str; 5] = ["queue_full", "tokens_waiting", "key_limit", "key_rate", "draining"];

/// Why a request was rejected, before it reached the engine or by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Too many open answers.
    QueueFull,
    /// Too many tokens queued.
    TokensWaiting,
    /// Too many open answers of the API key.
    KeyLimit,
    /// Too many requests or tokens of the API key in a minute.
    KeyRate,
    /// The server is shutting down.
    Draining,
}

impl Default for Metrics {
    fn default() -> Self {
        let long = || Histogram::new(REQUEST_BUCKETS, NANOS_PER_SECOND);
        Self {
            engine: Arc::default(),
            replicas: None,
            prompt_tokens: Counter::default(),
            longest_sequence: Gauge::default(),
            finished: Default::default(),
            rejected: Default::default(),
            ttft: long(),
            inter_token: Histogram::new(TOKEN_BUCKETS, NANOS_PER_SECOND),
            tpot: Histogram::new(TOKEN_BUCKETS, NANOS_PER_SECOND),
            e2e: long(),
            queue: long(),
            prefill: long(),
            decode: long(),
            prompts: Histogram::new(COUNT_BUCKETS, 1.0),
            answers: Histogram::new(COUNT_BUCKETS, 1.0),
            per_key: PerKey::default(),
        }
    }
}

impl Metrics {
    /// Metrics of a server with this many engines in other processes.
    pub(crate) fn of_replicas(replicas: usize) -> Self {
        let metrics = Self::default();
        let replicas = ReplicaMetrics::new(replicas, Arc::clone(&metrics.engine));
        Self { replicas: Some(replicas), ..metrics }
    }

    /// Load and prefix cache hit rate of each running engine after its last step.
    pub(crate) fn rank_loads(&self) -> Vec<(RankLoad, f64)> {
        let load = |(rank, engine): (usize, &EngineMetrics)| (engine.load(rank), engine.hit_rate());
        let loads: Vec<_> = match &self.replicas {
            Some(replicas) => replicas.by_replica().map(load).collect(),
            None => vec![load((0, &self.engine))],
        };
        // An engine whose process has ended has capacity 0.
        loads.into_iter().filter(|(load, _)| load.capacity > 0).collect()
    }

    /// Block size of the KV cache.
    pub(crate) fn block_size(&self) -> u64 {
        self.engine.block.get()
    }

    /// Number of engines.
    pub(crate) fn ranks(&self) -> usize {
        self.replicas.as_ref().map_or(1, |replicas| replicas.by_replica().count())
    }

    /// Requests in the engine's queue, as of its last step.
    pub fn waiting(&self) -> u64 {
        self.engine.waiting.get()
    }

    /// The counters of the API key with this id and name; `None` for id 0, a request without a key.
    pub(crate) fn of_key(&self, key: u64, name: Option<&str>) -> Option<Arc<KeyMetrics>> {
        (key != 0).then(|| self.per_key.of(name))
    }

    /// Counts a rejected request, also under its key if it has one.
    pub(crate) fn reject(&self, why: Rejected, key: Option<&KeyMetrics>) {
        self.count_rejection(why);
        key.into_iter().for_each(KeyMetrics::rejected);
    }

    fn count_rejection(&self, why: Rejected) {
        if let Some(counter) = self.rejected.get(why as usize) {
            counter.add(1);
        }
    }

    /// Records inter-token latency: time between two deliveries of one answer, in nanoseconds.
    pub(crate) fn inter_token(&self, inter_token: Nanos) {
        self.inter_token.observe(inter_token);
    }

    /// Records an ended request, also under its key if it has one.
    pub(crate) fn ended(&self, summary: &Summary, key: Option<&KeyMetrics>) {
        if let Some(key) = key {
            key.ended(summary, matches!(summary.finish, Finish::Refused(_)));
        }
        let at = match summary.finish {
            Finish::StopSequence { .. }
            | Finish::Eos
            | Finish::StopId(_)
            | Finish::StopText
            | Finish::Encoded => 0,
            Finish::MaxTokens | Finish::ModelLength | Finish::Capacity => 1,
            Finish::Aborted => 2,
            Finish::Refused(_) => 4,
            // `Failed`, and reasons that this server does not know.
            _ => 3,
        };
        if let Some(counter) = self.finished.get(at) {
            counter.add(1);
        }
        if let Finish::Refused(refusal) = summary.finish {
            if matches!(refusal, Refusal::QueueFull { .. }) {
                self.count_rejection(Rejected::QueueFull);
            }
            return;
        }
        let times = &summary.timings;
        let between = |from: Option<Nanos>, to: Option<Nanos>| Some(to?.saturating_sub(from?));
        let observe =
            |histogram: &Histogram, time: Option<Nanos>| time.into_iter().for_each(|t| histogram.observe(t));
        observe(&self.ttft, summary.ttft());
        observe(&self.tpot, summary.tpot());
        observe(&self.e2e, between(Some(times.arrived), times.finished));
        observe(&self.queue, between(Some(times.arrived), times.admitted));
        observe(&self.prefill, between(times.admitted, times.first_token));
        observe(&self.decode, between(times.first_token, times.finished));
        self.prompts.observe(summary.prompt.into());
        self.answers.observe(summary.outputs.into());
        self.prompt_tokens.add(summary.prompt.into());
        self.longest_sequence.set_max(u64::from(summary.prompt) + u64::from(summary.outputs));
    }
}

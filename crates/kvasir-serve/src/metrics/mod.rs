//! Server metrics (Prometheus): latency histograms, token counters, KV cache usage, admission
//! rejections.
//!
//! Updates from the engine's thread take no lock and allocate nothing. Knows no request.

mod deferral_group;
pub(crate) mod page;
pub(crate) mod per_key;
pub(crate) mod process;
pub(crate) mod prometheus;

use crate::metrics::deferral_group::DeferralGroup;
use crate::metrics::per_key::{KeyMetrics, PerKey};
pub use crate::metrics::prometheus::Names;
use crate::metrics::prometheus::{
    COUNT_BUCKETS, Counter, Gauge, Histogram, NANOS_PER_SECOND, REQUEST_BUCKETS, TOKEN_BUCKETS,
};
use kvasir_engine::{Core, Finish, Nanos, Observer, Refusal, Summary};
use kvasir_exec::{Step, StepError};
use std::sync::Arc;

/// All metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    running: Gauge,
    waiting: Gauge,
    capacity: Gauge,
    block: Gauge,
    slots_held: Gauge,
    slots_cached: Gauge,
    slots_retained: Gauge,
    steps: Counter,
    failed_steps: Counter,
    step_time: Histogram,
    step_tokens: Histogram,
    prefix_queries: Counter,
    prefix_hits: Counter,
    prompt_tokens: Counter,
    computed_tokens: Counter,
    generation_tokens: Counter,
    preemptions: Counter,
    /// Dummy tokens that steps were padded with.
    padding: Counter,
    /// Speculative decoding: verifications, drafts, and drafts accepted at each position.
    drafts: Gauge,
    draft_tokens: Gauge,
    accepted_by_position: [Gauge; DRAFT_POSITIONS.len()],
    /// Pauses and resumes of decode rows under the `rectangular` policy.
    pauses: Gauge,
    resumes: Gauge,
    deferred: [Counter; DeferralGroup::LABELS.len()],
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
/// Labels of draft positions; later ones are counted with the last.
const DRAFT_POSITIONS: [&str; 16] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];
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
            running: Gauge::default(),
            waiting: Gauge::default(),
            capacity: Gauge::default(),
            block: Gauge::default(),
            slots_held: Gauge::default(),
            slots_cached: Gauge::default(),
            slots_retained: Gauge::default(),
            steps: Counter::default(),
            failed_steps: Counter::default(),
            step_time: Histogram::new(TOKEN_BUCKETS, NANOS_PER_SECOND),
            step_tokens: Histogram::new(COUNT_BUCKETS, 1.0),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            prompt_tokens: Counter::default(),
            computed_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            preemptions: Counter::default(),
            padding: Counter::default(),
            drafts: Gauge::default(),
            draft_tokens: Gauge::default(),
            accepted_by_position: Default::default(),
            pauses: Gauge::default(),
            resumes: Gauge::default(),
            deferred: Default::default(),
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
    /// Requests in the engine's queue, as of its last step.
    pub fn waiting(&self) -> u64 {
        self.waiting.get()
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
            Finish::StopSequence { .. } | Finish::Eos | Finish::StopId(_) | Finish::StopText => 0,
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
    }

    /// Updates the gauges.
    fn update_gauges(&self, core: &Core) {
        let ((waiting, running), cache) = (core.counts(), core.cache());
        let usage = cache.usage();
        self.waiting.set(waiting as u64);
        self.running.set(running as u64);
        self.capacity.set(cache.shape().capacity.into());
        self.block.set(cache.shape().block_size.into());
        let retained = u64::from(core.retained_slots());
        self.slots_held.set((u64::from(usage.held) + u64::from(usage.leased)).saturating_sub(retained));
        self.slots_retained.set(retained);
        self.slots_cached.set(usage.evictable.into());
    }

    /// Counts the tokens of a step; of drafts those that were accepted.
    fn generated(&self, core: &Core, step: &Step) {
        let drafted = step.batch.rows.iter().enumerate().filter(|(_, row)| row.drafts.count > 0);
        let (mut rejected, mut accepted) = (0, Vec::new());
        for (i, row) in drafted {
            accepted.clear();
            step.accepted(i, &mut accepted);
            rejected += u64::from(row.drafts.count) - accepted.len() as u64;
        }
        self.generation_tokens.add((step.output.tokens.len() as u64).saturating_sub(rejected));
        let stats = core.draft_stats();
        self.drafts.set(stats.verified);
        self.draft_tokens.set(stats.tokens);
        let last = DRAFT_POSITIONS.len() - 1;
        for (at, gauge) in self.accepted_by_position.iter().enumerate() {
            let accepted = if at == last {
                stats.accepted.iter().skip(last).sum()
            } else {
                stats.accepted.get(at).copied().unwrap_or(0)
            };
            gauge.set(accepted);
        }
    }

    fn scheduled(&self, core: &Core, step: &Step) {
        let record = core.record();
        self.update_gauges(core);
        self.steps.add(1);
        self.preemptions.add(record.preempted.len() as u64);
        self.pauses.set(record.rectangle.pause_events);
        self.resumes.set(record.rectangle.resume_events);
        for admission in &record.admitted {
            let prompt = core.sequence(admission.request).map_or(0, |sequence| sequence.len());
            self.prefix_queries.add(prompt.into());
            self.prefix_hits.add(admission.hit.into());
        }
        let ((_, prompt), (_, decode)) = step.batch.counts();
        self.computed_tokens.add(prompt as u64);
        self.step_tokens.observe((prompt + decode) as u64);
        for deferred in &record.deferred {
            self.deferred[DeferralGroup::of(deferred.reason) as usize].add(1);
        }
    }
}

/// Engine observer that updates the metrics.
pub(crate) struct MetricsObserver(pub(crate) Arc<Metrics>);

impl Observer for MetricsObserver {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        self.0.scheduled(core, step);
    }

    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, _: Nanos) {
        match result {
            Ok(()) => {
                self.0.step_time.observe(step.output.device_ns);
                self.0.padding.add(step.output.padding.into());
                self.0.generated(core, step);
            }
            Err(_) => self.0.failed_steps.add(1),
        }
        self.0.update_gauges(core);
    }

    fn idle(&mut self, core: &Core) {
        self.0.update_gauges(core);
    }
}

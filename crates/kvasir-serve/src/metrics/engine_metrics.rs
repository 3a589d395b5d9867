//! Metrics that an engine's steps update: queue, KV cache, steps, prefix hits, drafts.
//!
//! A worker process sends them as a list of numbers ([`EngineMetrics::snapshot`]). The server adds
//! up the lists of its replicas ([`ReplicaMetrics`]).
//!
//! The observer of an engine takes no lock, and allocates only for accepted drafts.

use crate::metrics::deferral_group::DeferralGroup;
use crate::metrics::prometheus::{COUNT_BUCKETS, Counter, Gauge, Histogram, NANOS_PER_SECOND, TOKEN_BUCKETS};
use kvasir_engine::{Core, Nanos, Observer, RankLoad};
use kvasir_exec::{Step, StepError};
use kvasir_kv::CacheEnd;
use serde::Serialize;
use std::{
    array, iter,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Labels of draft positions; later ones are counted with the last.
pub(super) const DRAFT_POSITIONS: [&str; 16] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];

/// Metrics of one engine.
#[derive(Debug)]
pub struct EngineMetrics {
    pub(super) running: Gauge,
    pub(super) waiting: Gauge,
    pub(super) capacity: Gauge,
    pub(super) block: Gauge,
    pub(super) slots_held: Gauge,
    pub(super) slots_cached: Gauge,
    pub(super) slots_retained: Gauge,
    pub(crate) steps: Counter,
    pub(super) failed_steps: Counter,
    /// Dummy steps that joined steps of other expert-parallel replicas.
    pub(super) dummy_steps: Counter,
    pub(super) step_time: Histogram,
    pub(super) step_tokens: Histogram,
    /// Batch rows of all steps.
    pub(super) step_rows: Counter,
    pub(super) prefix_queries: Counter,
    pub(super) prefix_hits: Counter,
    /// Short prefix hits, and the prompt tokens that were not cached, by `CacheEnd`.
    pub(super) prefix_ends: [Counter; CacheEnd::ALL.len()],
    pub(super) prefix_end_tokens: [Counter; CacheEnd::ALL.len()],
    pub(super) computed_tokens: Counter,
    pub(super) generation_tokens: Counter,
    pub(super) preemptions: Counter,
    /// Dummy tokens that steps were padded with.
    pub(super) padding: Counter,
    /// Speculative decoding: verifications, drafts, and drafts accepted at each position.
    pub(super) drafts: Gauge,
    pub(super) draft_tokens: Gauge,
    pub(super) accepted_by_position: [Gauge; DRAFT_POSITIONS.len()],
    /// Pauses and resumes of decode rows under the `rectangular` policy.
    pub(super) pauses: Gauge,
    pub(super) resumes: Gauge,
    pub(super) deferred: [Counter; DeferralGroup::LABELS.len()],
}

impl Default for EngineMetrics {
    fn default() -> Self {
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
            dummy_steps: Counter::default(),
            step_time: Histogram::new(TOKEN_BUCKETS, NANOS_PER_SECOND),
            step_tokens: Histogram::new(COUNT_BUCKETS, 1.0),
            step_rows: Counter::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            prefix_ends: array::from_fn(|_| Counter::default()),
            prefix_end_tokens: array::from_fn(|_| Counter::default()),
            computed_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            preemptions: Counter::default(),
            padding: Counter::default(),
            drafts: Gauge::default(),
            draft_tokens: Gauge::default(),
            accepted_by_position: array::from_fn(|_| Gauge::default()),
            pauses: Gauge::default(),
            resumes: Gauge::default(),
            deferred: array::from_fn(|_| Counter::default()),
        }
    }
}

/// How the values of several engines are aggregated.
#[derive(Clone, Copy, PartialEq)]
enum Aggregation {
    /// A current value: the sum over running processes.
    Current,
    /// A count since the start: the sum over running and ended processes.
    Cumulative,
    /// A constant of the configuration: the maximum, since engines that are not ready have 0.
    Constant,
}

impl EngineMetrics {
    /// An engine observer that updates these metrics.
    pub fn observer(self: &Arc<Self>) -> Box<dyn Observer> {
        Box::new(MetricsObserver(Arc::clone(self)))
    }

    /// Number of started steps.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// All values, in an order that depends only on the program's version.
    pub fn snapshot(&self) -> Vec<u64> {
        self.cells().map(|(_, cell)| cell.load(Ordering::Relaxed)).collect()
    }

    /// The load of the engine, reported as `rank`.
    pub(super) fn load(&self, rank: usize) -> RankLoad {
        RankLoad {
            rank,
            running: self.running.get(),
            waiting: self.waiting.get(),
            used_tokens: self.slots_held.get(),
            capacity: self.capacity.get(),
        }
    }

    /// Prefix cache hit rate: hit tokens per looked-up prompt token, 0 to 1.
    pub(super) fn hit_rate(&self) -> f64 {
        self.prefix_hits.get() as f64 / self.prefix_queries.get().max(1) as f64
    }

    /// Replaces all values, in the order of a snapshot.
    fn set(&self, values: impl Iterator<Item = u64>) {
        self.cells().zip(values).for_each(|((_, cell), value)| cell.store(value, Ordering::Relaxed));
    }

    /// All values in the order of a snapshot.
    fn cells(&self) -> impl Iterator<Item = (Aggregation, &AtomicU64)> {
        let levels = [&self.running, &self.waiting, &self.capacity, &self.slots_held, &self.slots_cached];
        let levels = levels.into_iter().chain([&self.slots_retained]).map(Gauge::cell);
        let counters =
            [&self.steps, &self.failed_steps, &self.step_rows, &self.prefix_queries, &self.prefix_hits];
        let more = [&self.computed_tokens, &self.generation_tokens, &self.preemptions, &self.padding];
        let counters = counters.into_iter().chain(more).chain([&self.dummy_steps]).chain(&self.deferred);
        let counters = counters.chain(&self.prefix_ends).chain(&self.prefix_end_tokens).map(Counter::cell);
        let totals = [&self.drafts, &self.draft_tokens, &self.pauses, &self.resumes];
        let totals = totals.into_iter().chain(&self.accepted_by_position).map(Gauge::cell);
        let histograms = [&self.step_time, &self.step_tokens].into_iter().flat_map(Histogram::cells);
        let counts = counters.chain(totals).chain(histograms);
        let current = levels.map(|cell| (Aggregation::Current, cell));
        let cumulative = counts.map(|cell| (Aggregation::Cumulative, cell));
        current.chain(cumulative).chain([(Aggregation::Constant, self.block.cell())])
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
        self.step_rows.add(step.batch.rows.len() as u64);
        self.preemptions.add(record.preempted.len() as u64);
        self.pauses.set(record.rectangle.pause_events);
        self.resumes.set(record.rectangle.resume_events);
        for admission in &record.admitted {
            let sequence = core.sequence(admission.request);
            // `len` includes the tokens that steps in flight sample.
            let prompt = sequence.map_or(0, |sequence| sequence.len() - sequence.in_flight());
            self.prefix_queries.add(prompt.into());
            self.prefix_hits.add(admission.hit.into());
            if let Some(cache_end) = admission.prefix.cache_end {
                self.prefix_ends[cache_end as usize].add(1);
                self.prefix_end_tokens[cache_end as usize].add(prompt.saturating_sub(admission.hit).into());
            }
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
struct MetricsObserver(Arc<EngineMetrics>);

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

    fn joined(&mut self, _: &Core, _: &Step, _: Nanos) {
        self.0.dummy_steps.add(1);
    }

    fn idle(&mut self, core: &Core) {
        self.0.update_gauges(core);
    }
}

/// Statistics of a replica's engine after its last report. Counters start at 0 with each process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ReplicaStats {
    /// Running requests.
    running: u64,
    /// Requests in its queue.
    waiting: u64,
    /// KV cache slots: all, those of running requests, and those that can be evicted.
    kv_slots: u64,
    kv_held: u64,
    kv_cached: u64,
    /// Prompt tokens looked up in the prefix cache, and found there.
    prefix_queries: u64,
    prefix_hits: u64,
    steps: u64,
    generation_tokens: u64,
}

/// Metrics of the replicas of a fleet, and their sums.
#[derive(Debug)]
pub(crate) struct ReplicaMetrics {
    /// Metrics of the running process, by replica.
    replicas: Vec<Arc<EngineMetrics>>,
    /// Sums over ended processes, by replica, in the order of a snapshot.
    ended: Mutex<Vec<Vec<u64>>>,
    /// Sums over all replicas.
    total: Arc<EngineMetrics>,
}

impl ReplicaMetrics {
    /// Metrics of `replicas` engines, whose sums are kept in `total`.
    pub(super) fn new(replicas: usize, total: Arc<EngineMetrics>) -> Self {
        let replicas: Vec<Arc<EngineMetrics>> = (0..replicas).map(|_| Arc::default()).collect();
        let ended = vec![vec![0; total.cells().count()]; replicas.len()];
        Self { replicas, ended: Mutex::new(ended), total }
    }

    /// Statistics of a replica; all 0 if there is no such replica.
    pub(crate) fn stats(&self, replica: usize) -> ReplicaStats {
        let Some(engine) = self.replicas.get(replica) else { return ReplicaStats::default() };
        ReplicaStats {
            running: engine.running.get(),
            waiting: engine.waiting.get(),
            kv_slots: engine.capacity.get(),
            kv_held: engine.slots_held.get(),
            kv_cached: engine.slots_cached.get() + engine.slots_retained.get(),
            prefix_queries: engine.prefix_queries.get(),
            prefix_hits: engine.prefix_hits.get(),
            steps: engine.steps.get(),
            generation_tokens: engine.generation_tokens.get(),
        }
    }

    pub(super) fn by_replica(&self) -> impl Iterator<Item = (usize, &EngineMetrics)> {
        self.replicas.iter().map(|metrics| &**metrics).enumerate()
    }

    /// Replaces the metrics of a replica by a snapshot; an empty one says that its process has
    /// ended. A snapshot with fewer steps than the last is that of a new process.
    pub(crate) fn update(&self, replica: usize, snapshot: &[u64]) {
        let Some(metrics) = self.replicas.get(replica) else { return };
        // A poisoned lock is ignored: each value is valid by itself.
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, steps) = (metrics.snapshot(), metrics.steps.get());
        match snapshot {
            [] => metrics.set(iter::repeat(0)),
            _ => metrics.set(snapshot.iter().copied()),
        }
        if metrics.steps.get() < steps {
            ended[replica].iter_mut().zip(before).for_each(|(sum, value)| *sum += value);
        }
        let mut sums = vec![0; ended[replica].len()];
        for (metrics, ended) in self.replicas.iter().zip(&*ended) {
            for ((sum, (aggregation, cell)), ended) in sums.iter_mut().zip(metrics.cells()).zip(ended) {
                let value = cell.load(Ordering::Relaxed);
                match aggregation {
                    Aggregation::Current => *sum += value,
                    Aggregation::Cumulative => *sum += value + ended,
                    Aggregation::Constant => *sum = value.max(*sum),
                }
            }
        }
        self.total.set(sums.into_iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_ended_processes_stay_in_the_sums() {
        let total = Arc::<EngineMetrics>::default();
        let replicas = ReplicaMetrics::new(2, total.clone());
        let snapshot = |running: u64, steps: u64| {
            let metrics = EngineMetrics::default();
            metrics.running.set(running);
            metrics.block.set(16);
            metrics.steps.add(steps);
            (0..steps).for_each(|_| metrics.step_tokens.observe(5));
            metrics.snapshot()
        };
        replicas.update(0, &snapshot(3, 10));
        replicas.update(1, &snapshot(4, 20));
        assert_eq!((total.running.get(), total.steps.get(), total.block.get()), (7, 30, 16));
        replicas.update(0, &snapshot(1, 2));
        assert_eq!((total.running.get(), total.steps.get()), (5, 32));
        replicas.update(0, &snapshot(1, 5));
        assert_eq!((total.running.get(), total.steps.get()), (5, 35));
        replicas.update(7, &snapshot(1, 5));
        replicas.update(0, &[]);
        assert_eq!((total.running.get(), total.steps.get()), (4, 35));
    }
}

//! What the server counts, as Prometheus reads it. Counting takes no lock and no memory on the engine's thread.

mod kinds;
mod page;

use kinds::{Counter, Gauge, Histogram, LONG, SECOND, SHORT, TOKENS};
use kvasir_engine::{Core, Finish, Nanos, Observer, Reason, Refusal, Summary};
use kvasir_exec::{Phase, Step, StepError};
use std::sync::Arc;

pub use page::Names;

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    running: Gauge,
    waiting: Gauge,
    capacity: Gauge,
    block: Gauge,
    slots_held: Gauge,
    slots_cached: Gauge,
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
    held: [Counter; HELD.len()],
    finished: [Counter; FINISHED.len()],
    rejected: [Counter; REJECTED.len()],
    ttft: Histogram,
    gap: Histogram,
    tpot: Histogram,
    e2e: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompts: Histogram,
    answers: Histogram,
}

/// Why requests that waited were not admitted, in families.
const HELD: [&str; 4] = ["room", "budget", "order", "other"];
/// How requests end, by the names that other servers' dashboards know.
const FINISHED: [&str; 5] = ["stop", "length", "abort", "error", "refused"];
/// Who turned a request away.
const REJECTED: [&str; 4] = ["queue_full", "tokens_waiting", "key_limit", "draining"];

/// Why a request was turned away before it reached the engine, or by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// As many requests wait as may.
    QueueFull,
    /// As many tokens wait as may.
    TokensWaiting,
    /// The key has as many requests under way as it may.
    KeyLimit,
    /// The server is leaving.
    Draining,
}

impl Default for Metrics {
    fn default() -> Self {
        let long = || Histogram::new(LONG, SECOND);
        Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            capacity: Gauge::default(),
            block: Gauge::default(),
            slots_held: Gauge::default(),
            slots_cached: Gauge::default(),
            steps: Counter::default(),
            failed_steps: Counter::default(),
            step_time: Histogram::new(SHORT, SECOND),
            step_tokens: Histogram::new(TOKENS, 1.0),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            prompt_tokens: Counter::default(),
            computed_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            preemptions: Counter::default(),
            held: Default::default(),
            finished: Default::default(),
            rejected: Default::default(),
            ttft: long(),
            gap: Histogram::new(SHORT, SECOND),
            tpot: Histogram::new(SHORT, SECOND),
            e2e: long(),
            queue: long(),
            prefill: long(),
            decode: long(),
            prompts: Histogram::new(TOKENS, 1.0),
            answers: Histogram::new(TOKENS, 1.0),
        }
    }
}

impl Metrics {
    /// Requests that wait in the engine's queue, as of its last step.
    pub fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// Counts one that was turned away.
    pub fn reject(&self, why: Rejected) {
        if let Some(counter) = self.rejected.get(why as usize) {
            counter.add(1);
        }
    }

    /// Counts the gap between two pieces of one answer, in nanoseconds.
    pub(crate) fn gap(&self, gap: Nanos) {
        self.gap.see(gap);
    }

    /// Counts a request that has ended.
    pub(crate) fn ended(&self, summary: &Summary) {
        let at = match summary.finish {
            Finish::StopSequence { .. } | Finish::Eos | Finish::StopId(_) | Finish::StopText => 0,
            Finish::MaxTokens | Finish::ModelLength | Finish::Capacity => 1,
            Finish::Aborted => 2,
            Finish::Failed(_) => 3,
            Finish::Refused(_) => 4,
        };
        if let Some(counter) = self.finished.get(at) {
            counter.add(1);
        }
        if let Finish::Refused(refusal) = summary.finish {
            if matches!(refusal, Refusal::QueueFull { .. }) {
                self.reject(Rejected::QueueFull);
            }
            return;
        }
        let times = &summary.timings;
        let between = |from: Option<Nanos>, to: Option<Nanos>| Some(to?.saturating_sub(from?));
        let see =
            |histogram: &Histogram, time: Option<Nanos>| time.into_iter().for_each(|t| histogram.see(t));
        see(&self.ttft, summary.ttft());
        see(&self.tpot, summary.tpot());
        see(&self.e2e, between(Some(times.arrived), times.finished));
        see(&self.queue, between(Some(times.arrived), times.admitted));
        see(&self.prefill, between(times.admitted, times.first_token));
        see(&self.decode, between(times.first_token, times.finished));
        self.prompts.see(summary.prompt.into());
        self.answers.see(summary.outputs.into());
        self.prompt_tokens.add(summary.prompt.into());
    }

    /// What stands where, now.
    fn levels(&self, core: &Core) {
        let ((waiting, running), cache) = (core.counts(), core.cache());
        let room = cache.room();
        self.waiting.set(waiting as u64);
        self.running.set(running as u64);
        self.capacity.set(cache.capacity().into());
        self.block.set(cache.block_size().into());
        self.slots_held.set(u64::from(room.held) + u64::from(room.leased));
        self.slots_cached.set(room.evictable.into());
    }

    fn scheduled(&self, core: &Core, step: &Step) {
        let record = core.record();
        self.levels(core);
        self.steps.add(1);
        self.preemptions.add(record.preempted.len() as u64);
        for admission in &record.admitted {
            let prompt = core.sequence(admission.request).map_or(0, |sequence| sequence.len());
            self.prefix_queries.add(prompt.into());
            self.prefix_hits.add(admission.hit.into());
        }
        let (_, prompt) = step.batch.count(Phase::Prefill);
        let (_, decode) = step.batch.count(Phase::Decode);
        self.computed_tokens.add(prompt as u64);
        self.step_tokens.see((prompt + decode) as u64);
        for held in &record.held {
            if let Some(counter) = self.held.get(family(held.reason)) {
                counter.add(1);
            }
        }
    }
}

/// The place in [`HELD`].
fn family(reason: Reason) -> usize {
    match reason {
        Reason::NoRoom { .. } | Reason::Reserved { .. } | Reason::Lease { .. } | Reason::CacheSequences => 0,
        Reason::TokenBudget
        | Reason::SequenceLimit
        | Reason::CostTarget
        | Reason::NoPoolRow
        | Reason::NoStateSlot => 1,
        Reason::Behind | Reason::PrefillFirst | Reason::DecodeFirst | Reason::Sibling => 2,
        _ => 3,
    }
}

/// Counts the steps of an engine.
pub(crate) struct Eyes(pub(crate) Arc<Metrics>);

impl Observer for Eyes {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        self.0.scheduled(core, step);
    }

    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, _: Nanos) {
        match result {
            Ok(()) => {
                self.0.step_time.see(step.output.device_ns);
                self.0.generation_tokens.add(step.output.tokens.len() as u64);
            }
            Err(_) => self.0.failed_steps.add(1),
        }
        self.0.levels(core);
    }

    fn idle(&mut self, core: &Core) {
        self.0.levels(core);
    }
}

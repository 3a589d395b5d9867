//! Counters and the final report of a simulation: throughput, latency percentiles, cache hits,
//! device utilization.

use crate::sim::figures::{grouped, three_digits};
use crate::sim::histogram::{Histogram, Percentiles};
use crate::sim::open_request::TransitTimes;
use crate::sim::replica_report::ReplicaReport;
use crate::sim::series::{Sample, Series};
use crate::sim::time_breakdown::RoleTime;
use kvasir_engine::{DraftStats, Finish, StepRecord, Summary};
use kvasir_exec::Step;
use kvasir_kv::CacheEnd;
use kvasir_sim::{Preset, Totals};
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// Counts of the short prefix hits that have the same reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShortHits {
    /// Requests with such a hit.
    pub requests: u64,
    /// Prompt tokens of these requests that were not cached.
    pub tokens: u64,
}

/// Result of one request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Request name, or its tag.
    pub id: String,
    /// Finish reason.
    pub finish: Finish,
    /// Prompt tokens.
    pub prompt: u32,
    /// Prompt tokens served from the prefix cache.
    pub cached: u32,
    /// Prompt tokens that matched cached K/V.
    pub matched: u32,
    /// Why the prefix hit was short; `None` if it was not.
    pub cache_end: Option<CacheEnd>,
    /// Output tokens.
    pub outputs: u32,
    /// Time to first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Time per output token after the first, in milliseconds.
    pub tpot_ms: Option<f64>,
    /// Queueing time before admission, in milliseconds.
    pub queued_ms: Option<f64>,
    /// Number of preemptions.
    pub preemptions: u32,
}

/// The simulated machine, with the sources of its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SimulatedMachine {
    /// Its name.
    pub name: String,
    /// Model shape.
    pub shape: String,
    /// Type of the weights.
    pub weights: String,
    /// Figures of the cost model.
    pub figures: Vec<MachineFigure>,
}

/// A figure of the cost model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineFigure {
    /// What it measures.
    pub name: &'static str,
    /// The value; `null` in JSON if infinite.
    pub value: f64,
    /// Its unit; empty for a count.
    pub unit: &'static str,
    /// Source: `measured`, or the publication.
    pub source: String,
}

impl SimulatedMachine {
    /// The machine of a preset.
    pub fn of(Preset { machine, shape, .. }: &Preset) -> Self {
        let figures = machine.figures().into_iter().map(|(name, unit, figure)| MachineFigure {
            name,
            value: figure.value,
            unit,
            source: figure.source.to_string(),
        });
        Self {
            name: machine.name.into(),
            shape: shape.name.into(),
            weights: machine.weights.name().into(),
            figures: figures.collect(),
        }
    }

    /// Each source with its figures.
    pub fn sources(&self) -> Vec<(&str, String)> {
        let mut sources: Vec<(&str, String)> = Vec::new();
        for figure in &self.figures {
            let text = figure.to_string();
            match sources.iter_mut().find(|(known, _)| *known == figure.source) {
                Some((_, figures)) => {
                    figures.push_str(", ");
                    figures.push_str(&text);
                }
                None => sources.push((&figure.source, text)),
            }
        }
        sources
    }
}

impl fmt::Display for MachineFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, unit, .. } = self;
        let prefixes = [(1e12, "T"), (1e9, "G"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (0.0, "n")];
        let found = prefixes.into_iter().find(|(least, _)| *value >= *least && !unit.is_empty());
        let (scale, prefix) = match found {
            Some((0.0, prefix)) => (1e-9, prefix),
            Some(found) => found,
            None => (1.0, ""),
        };
        write!(f, "{name} {}", three_digits(value / scale))?;
        if unit.is_empty() { Ok(()) } else { write!(f, " {prefix}{unit}") }
    }
}

/// Mean latency of complete requests by phase, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RequestTimes {
    /// Arrival to admission.
    pub queue: f64,
    /// Admission to first token, without `between_replicas`.
    pub prefill: f64,
    /// First token to last, without `between_replicas`.
    pub decode: f64,
    /// From the end of a run on one replica to the admission on the next, after a hand-off or a
    /// failure: K/V transfer and queue.
    pub between_replicas: f64,
}

/// Results of a run. Deterministic: wall time is not included, so equal runs give equal reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The simulated machine.
    pub machine: SimulatedMachine,
    /// Requests that ended, including refused ones.
    pub requests: u64,
    /// Requests answered completely.
    pub finished: u64,
    /// Requests rejected at submission.
    pub refused: u64,
    /// Number of requests by finish reason.
    pub ended: BTreeMap<String, u64>,
    /// Simulated time, in seconds.
    pub seconds: f64,
    /// Scheduled steps.
    pub steps: u64,
    /// Prompt tokens of all admitted requests.
    pub prompt_tokens: u64,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: u64,
    /// Prefix cache hit rate: `cached_tokens / prompt_tokens`.
    pub hit_rate: f64,
    /// Short prefix hits by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub short_hits: BTreeMap<CacheEnd, ShortHits>,
    /// Output tokens of all requests.
    pub output_tokens: u64,
    /// Output tokens per simulated second.
    pub output_tokens_per_second: f64,
    /// Prompt and output tokens per simulated second.
    pub total_tokens_per_second: f64,
    /// Completed requests per simulated second.
    pub requests_per_second: f64,
    /// Time to first token (TTFT), in milliseconds.
    pub ttft_ms: Percentiles,
    /// Time per output token (TPOT) after the first, per request, in milliseconds.
    pub tpot_ms: Percentiles,
    /// Inter-token latency (ITL), in milliseconds.
    pub itl_ms: Percentiles,
    /// End-to-end latency from arrival to finish, in milliseconds.
    pub e2e_ms: Percentiles,
    /// Mean latency by phase.
    pub request_times_ms: RequestTimes,
    /// Preemptions of all requests.
    pub preemptions: u64,
    /// Mean rows per step (batch size).
    pub mean_rows: f64,
    /// Maximum number of running requests.
    pub max_running: u32,
    /// Peak KV cache utilization, as a share of all slots.
    pub max_slots_used: f64,
    /// Device utilization: busy time over simulated time; the mean of several replicas.
    pub device_busy: f64,
    /// Memory bandwidth utilization while busy.
    pub bandwidth_used: f64,
    /// FLOP utilization while busy.
    pub arithmetic_used: f64,
    /// Left-padding slots of decode rows, as a share of all slots read.
    pub padding: f64,
    /// Drafts verified and accepted, if any were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<DraftStats>,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Time of the replicas by role and cause.
    pub time_of_replicas: Vec<RoleTime>,
    /// Results of each replica, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaReport>,
    /// Busy time of the busiest replica, in multiples of the mean; 0 for one replica.
    pub imbalance: f64,
    /// Why the run stopped early, if it did.
    pub broke_off: Option<String>,
    /// Per-request results in order of completion; only for runs of up to 10,000 requests.
    pub outcomes: Vec<Outcome>,
}

/// Counters accumulated during a run.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) report: Report,
    ttft: Histogram,
    tpot: Histogram,
    itl: Histogram,
    e2e: Histogram,
    series: Series,
    rows: u64,
    padded: u64,
    read: u64,
    most_used: u32,
    /// Total nanoseconds that complete requests spent in the queue, in prefill, in decode and between
    /// replicas.
    times: [u64; 4],
}

const MOST_OUTCOMES: u64 = 10_000;

impl Count {
    pub(crate) fn gap(&mut self, ns: u64) {
        self.itl.add(ns);
    }

    /// Counts a request that has ended. The workload has `expected` requests.
    pub(crate) fn ended(
        &mut self,
        summary: &Summary,
        transit: TransitTimes,
        name: impl FnOnce() -> String,
        expected: u64,
    ) {
        let report = &mut self.report;
        report.requests += 1;
        *report.ended.entry(summary.finish.to_string()).or_default() += 1;
        let refused = matches!(summary.finish, Finish::Refused(_));
        report.refused += u64::from(refused);
        let complete = matches!(
            summary.finish,
            Finish::Eos
                | Finish::MaxTokens
                | Finish::ModelLength
                | Finish::StopId(_)
                | Finish::StopSequence { .. }
        );
        report.finished += u64::from(complete);
        if !refused && summary.timings.admitted.is_some() {
            report.prompt_tokens += u64::from(summary.prompt);
            report.cached_tokens += u64::from(summary.cached);
            if let Some(cache_end) = summary.prefix.cache_end {
                let hits = report.short_hits.entry(cache_end).or_default();
                hits.requests += 1;
                hits.tokens += u64::from(summary.prompt.saturating_sub(summary.cached));
            }
        }
        report.output_tokens += u64::from(summary.outputs);
        report.preemptions += u64::from(summary.preemptions);
        let (ttft, tpot) = (summary.ttft(), summary.tpot().filter(|_| summary.outputs > 1));
        ttft.into_iter().for_each(|ns| self.ttft.add(ns));
        tpot.into_iter().for_each(|ns| self.tpot.add(ns));
        let arrived = summary.timings.arrived;
        if complete && let Some(done) = summary.timings.finished {
            self.e2e.add(done.saturating_sub(arrived));
            let admitted = summary.timings.admitted.unwrap_or(done);
            let first = summary.timings.first_token.unwrap_or(done);
            let last = summary.timings.last_token.unwrap_or(first);
            let phases = [
                admitted.saturating_sub(arrived),
                first.saturating_sub(admitted).saturating_sub(transit.in_prefill),
                last.saturating_sub(first).saturating_sub(transit.in_decode),
                transit.in_prefill + transit.in_decode,
            ];
            self.times.iter_mut().zip(phases).for_each(|(sum, ns)| *sum += ns);
        }
        if expected <= MOST_OUTCOMES {
            let ms = |ns: u64| ns as f64 / 1e6;
            report.outcomes.push(Outcome {
                id: name(),
                finish: summary.finish,
                prompt: summary.prompt,
                cached: summary.cached,
                matched: summary.prefix.matched,
                cache_end: summary.prefix.cache_end,
                outputs: summary.outputs,
                ttft_ms: ttft.map(ms),
                tpot_ms: tpot.map(ms),
                queued_ms: summary.timings.admitted.map(|at| ms(at.saturating_sub(arrived))),
                preemptions: summary.preemptions,
            });
        }
    }

    pub(crate) fn step(&mut self, record: &StepRecord, step: &Step, block: u32) {
        let used = record.usage.held + record.usage.leased;
        self.rows += step.batch.rows.len() as u64;
        self.report.steps += 1;
        self.report.max_running = self.report.max_running.max(record.running);
        self.most_used = self.most_used.max(used);
        for row in step.plan.rows.iter().filter(|row| row.left_pad_blocks > 0) {
            self.padded += u64::from(row.left_pad_blocks * block);
        }
        self.read += step.plan.rows.iter().map(|row| u64::from(row.read_len)).sum::<u64>();
        self.series.add(record.at, Sample::of(record, step));
    }

    /// The report of a run of `now` nanoseconds. The pair is the preset and the KV capacity of each
    /// replica.
    pub(crate) fn report(
        &self,
        now: u64,
        totals: Totals,
        (preset, capacity): (&Preset, u32),
        replicas: Vec<ReplicaReport>,
    ) -> Report {
        let mut report = self.report.clone();
        let seconds = now as f64 / 1e9;
        let per = |n: f64, of: f64| if of > 0.0 { n / of } else { 0.0 };
        let busy = totals.busy_ns as f64 / 1e9;
        report.machine = SimulatedMachine::of(preset);
        report.seconds = seconds;
        report.hit_rate = per(report.cached_tokens as f64, report.prompt_tokens as f64);
        report.output_tokens_per_second = per(report.output_tokens as f64, seconds);
        report.total_tokens_per_second = per((report.output_tokens + report.prompt_tokens) as f64, seconds);
        report.requests_per_second = per(report.finished as f64, seconds);
        report.ttft_ms = self.ttft.percentiles();
        report.tpot_ms = self.tpot.percentiles();
        report.itl_ms = self.itl.percentiles();
        report.e2e_ms = self.e2e.percentiles();
        report.mean_rows = per(self.rows as f64, report.steps as f64);
        report.max_slots_used = per(self.most_used.into(), capacity.into());
        report.device_busy = per(busy, seconds * replicas.len().max(1) as f64);
        let busiest = replicas.iter().map(|replica| replica.device_busy).fold(0.0, f64::max);
        report.imbalance = if replicas.len() <= 1 { 0.0 } else { per(busiest, report.device_busy) };
        report.time_of_replicas =
            RoleTime::by_role(replicas.iter().map(|replica| (replica.role, replica.time)));
        report.replicas = if replicas.len() > 1 { replicas } else { Vec::new() };
        let [queue, prefill, decode, between_replicas] =
            self.times.map(|ns| per(ns as f64 / 1e6, report.e2e_ms.count as f64));
        report.request_times_ms = RequestTimes { queue, prefill, decode, between_replicas };
        report.bandwidth_used = per(totals.bytes, busy * preset.machine.bandwidth.value);
        report.arithmetic_used = per(totals.operations, busy * preset.machine.operations().value);
        report.padding = per(self.padded as f64, (self.padded + self.read) as f64);
        report
    }

    /// Plot data for the viewer page.
    pub(crate) fn plots(&self, report: &Report) -> serde_json::Value {
        let percentiles: Vec<_> = [
            ("time to first token", &self.ttft),
            ("between two tokens", &self.itl),
            ("per output token", &self.tpot),
        ]
        .into_iter()
        .map(|(name, histogram)| serde_json::json!({"name": name, "values": histogram.curve()}))
        .collect();
        serde_json::json!({"numbers": report.numbers(), "series": self.series.drawn(), "percentiles": percentiles})
    }
}

impl Report {
    /// The main metrics, with names and units.
    pub fn numbers(&self) -> Vec<(&'static str, String)> {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let times = |p: &Percentiles| format!("{} / {} ms", three_digits(p.p50), three_digits(p.p99));
        let mut numbers = vec![
            ("requests", grouped(self.requests)),
            ("finished", grouped(self.finished)),
            ("refused", grouped(self.refused)),
            ("simulated time", format!("{} s", three_digits(self.seconds))),
            ("steps", grouped(self.steps)),
            ("output tokens", grouped(self.output_tokens)),
            ("output tokens/s", grouped(self.output_tokens_per_second as u64)),
            ("first token p50 / p99", times(&self.ttft_ms)),
            ("first token mean", format!("{} ms", three_digits(self.ttft_ms.mean))),
            ("per token p50 / p99", times(&self.tpot_ms)),
            ("between tokens p50 / p99", times(&self.itl_ms)),
            ("queue / prefill / decode", request_times(&self.request_times_ms)),
            ("prompt tokens", grouped(self.prompt_tokens)),
            ("found in the cache", percent(self.hit_rate)),
            ("short prefix hits", short_hits(&self.short_hits)),
            ("preemptions", grouped(self.preemptions)),
            ("rows per step", three_digits(self.mean_rows)),
            ("most at once", grouped(self.max_running.into())),
            ("slots used at most", percent(self.max_slots_used)),
            ("device busy", percent(self.device_busy)),
            ("of bandwidth", percent(self.bandwidth_used)),
            ("of arithmetic", percent(self.arithmetic_used)),
        ];
        let between_replicas = self.request_times_ms.between_replicas;
        if between_replicas > 0.0 {
            numbers.push(("between replicas", format!("{} ms", three_digits(between_replicas))));
        }
        if self.padding > 0.0 {
            numbers.push(("padding", percent(self.padding)));
        }
        if let Some(drafts) = &self.speculation {
            let ((accepted, _), verified) = (drafts.totals(), drafts.tokens);
            numbers.push(("drafts accepted", format!("{} of {}", grouped(accepted), grouped(verified))));
        }
        if !self.replicas.is_empty() {
            numbers.push(("replicas", grouped(self.replicas.len() as u64)));
            numbers.push(("busiest / mean replica", three_digits(self.imbalance)));
            let lost = self.replicas.iter().filter(|replica| replica.lost).count();
            numbers.extend((lost > 0).then(|| ("replicas lost", grouped(lost as u64))));
            let failures = self.replicas.iter().map(|replica| u64::from(replica.failures)).sum();
            numbers.extend((failures > 0).then(|| ("failures", grouped(failures))));
        }
        if self.failed_steps > 0 {
            numbers.push(("failed steps", grouped(self.failed_steps)));
        }
        numbers
    }
}

/// Number of short prefix hits by reason, with the prompt tokens that were not cached.
fn short_hits(by_reason: &BTreeMap<CacheEnd, ShortHits>) -> String {
    let entry = |(cache_end, hits): (&CacheEnd, &ShortHits)| {
        format!("{cache_end} {} ({} tokens)", grouped(hits.requests), grouped(hits.tokens))
    };
    if by_reason.is_empty() {
        "none".into()
    } else {
        by_reason.iter().map(entry).collect::<Vec<_>>().join(", ")
    }
}

fn request_times(times: &RequestTimes) -> String {
    format!(
        "{} / {} / {} ms",
        three_digits(times.queue),
        three_digits(times.prefill),
        three_digits(times.decode)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_printed_with_prefixed_units_by_source() {
        let machine = SimulatedMachine::of(&Preset::parse("h100:qwen3-14b:fp8").unwrap());
        let sources = machine.sources();
        let [(sheet, figures), (h200, starts), (.., kernels)] = sources.as_slice() else {
            panic!("{sources:?}")
        };
        assert!(sheet.starts_with("published: NVIDIA H100") && *h200 == "measured on h200", "{sources:?}");
        assert_eq!(figures, "bandwidth 3.35 TB/s, arithmetic 1,979 Top/s, memory 80.0 GB");
        assert!(starts.starts_with("start of a kernel 3.60 µs"), "{starts}");
        assert_eq!(kernels, "kernels of a layer 6.25");
    }
}

//! `kvasir bench offline`: offline batch throughput; every prompt is queued before the first step.
//!
//! Reports output and total tokens per second, TTFT, TPOT, prefix cache hits and preemptions.

use crate::sim::histogram::{Histogram, Percentiles};
use crate::sim::series::{Sample, Series};
use crate::workload::Workload;
use kvasir_engine::{Core, Engine, Exit, Nanos, Observer, Params, Refusal, Request, Summary};
use kvasir_exec::{Executor, Step, StepError};
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Results of one offline run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Title of the workload.
    pub workload: String,
    /// Requests completed.
    pub requests: u64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens of all requests.
    pub output_tokens: u64,
    /// Wall time from the first submission to the last completion, in seconds.
    pub seconds: f64,
    /// Output tokens per second.
    pub output_rate: f64,
    /// Prompt and output tokens per second.
    pub total_rate: f64,
    /// Time to first token (TTFT), from the start of the run.
    pub ttft: Percentiles,
    /// Time per output token (TPOT) after the first.
    pub tpot: Percentiles,
    /// Requests preempted at least once.
    pub preempted: u64,
    /// Plot data for the report page.
    #[serde(skip)]
    pub plots: Value,
}

impl Report {
    /// Labeled metrics, formatted for terminal output.
    pub fn numbers(&self) -> Vec<(&'static str, String)> {
        let times = |p: &Percentiles| format!("{:.1} / {:.1} ms", p.p50, p.p99);
        vec![
            ("requests", format!("{} in {:.2} s", self.requests, self.seconds)),
            ("prompt tokens", format!("{}, {} of them cached", self.prompt_tokens, self.cached_tokens)),
            ("output tokens", self.output_tokens.to_string()),
            ("output tokens per second", format!("{:.1}", self.output_rate)),
            ("all tokens per second", format!("{:.1}", self.total_rate)),
            ("first token p50 / p99", times(&self.ttft)),
            ("per token p50 / p99", times(&self.tpot)),
            ("preempted", self.preempted.to_string()),
        ]
    }
}

/// Observer that samples each scheduled step into a time series.
#[derive(Clone, Default)]
struct SeriesObserver(Arc<Mutex<Series>>);

impl Observer for SeriesObserver {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        let record = core.record();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(record.at, Sample::of(record, step));
    }

    fn completed(&mut self, _: &Core, _: &Step, _: &Result<(), StepError>, _: Nanos) {}
}

/// Why a run produced no report.
#[derive(Debug)]
pub enum Failure {
    /// The engine refused the request with this tag.
    Refused(u64, Refusal),
    /// The engine stopped before all requests completed.
    Stopped(Exit),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(tag, refusal) => write!(f, "request {tag}: {refusal}"),
            Self::Stopped(exit) => exit.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

/// Runs every request of `workload` that does not depend on an earlier answer, ignoring EOS.
///
/// Each request generates exactly its `max_tokens`. `progress` receives the number of completed
/// requests after every step.
pub fn run<E: Executor>(
    engine: Engine<E>,
    workload: &mut dyn Workload,
    vocab: Token,
    mut progress: impl FnMut(u64),
) -> Result<Report, Failure> {
    let mut requests = Vec::new();
    while let Some(job) = workload.next() {
        // Token ids beyond the vocabulary wrap around, so that any workload runs on a tiny model.
        let prompt = job.prompt.tokens().into_iter().map(|id| id % vocab.max(1)).collect();
        let sampling = Sampling { temperature: 0.6, seed: job.tag, ..Sampling::default() };
        let params = Params { max_tokens: job.max_tokens, ignore_eos: true, sampling, ..Params::default() };
        requests.push(Request { tag: job.tag, prompt, params });
    }
    let total = requests.len() as u64;
    let eyes = SeriesObserver::default();
    let mut engine = engine.observe(Box::new(eyes.clone()));
    let started = Instant::now();
    for request in requests {
        let tag = request.tag;
        engine.add_request(request).map_err(|refusal| Failure::Refused(tag, refusal))?;
    }
    let mut ended: Vec<Summary> = Vec::new();
    while (ended.len() as u64) < total {
        let turn = engine.step();
        let outbox = engine.core_mut().outbox();
        ended.append(&mut outbox.ended);
        outbox.clear();
        progress(ended.len() as u64);
        turn.map_err(Failure::Stopped)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let series = eyes.0.lock().unwrap_or_else(PoisonError::into_inner).drawn();
    Ok(report(workload.title(), &ended, seconds, series))
}

fn report(workload: String, ended: &[Summary], seconds: f64, series: Vec<Value>) -> Report {
    let sum = |of: fn(&Summary) -> u32| ended.iter().map(|summary| u64::from(of(summary))).sum::<u64>();
    let (prompt_tokens, output_tokens) = (sum(|s| s.prompt), sum(|s| s.outputs));
    let (mut ttft, mut tpot) = (Histogram::default(), Histogram::default());
    for summary in ended {
        summary.ttft().into_iter().for_each(|time| ttft.add(time));
        summary.tpot().into_iter().for_each(|time| tpot.add(time));
    }
    let curve = |name: &str, histogram: &Histogram| json!({"name": name, "values": histogram.curve()});
    let percentiles = [curve("time to first token", &ttft), curve("per output token", &tpot)];
    let mut report = Report {
        workload,
        requests: ended.len() as u64,
        prompt_tokens,
        cached_tokens: sum(|s| s.cached),
        output_tokens,
        seconds,
        output_rate: output_tokens as f64 / seconds,
        total_rate: (prompt_tokens + output_tokens) as f64 / seconds,
        ttft: ttft.percentiles(),
        tpot: tpot.percentiles(),
        preempted: ended.iter().filter(|summary| summary.preemptions > 0).count() as u64,
        plots: Value::Null,
    };
    report.plots = json!({"numbers": report.numbers(), "series": series, "percentiles": percentiles});
    report
}

//! `kvasir bench offline`: many prompts, all there from the start, and how long it takes until the last is answered.

use crate::{
    sim::{Histogram, Percentiles},
    workload::Workload,
};
use kvasir_engine::{Engine, Exit, Params, Refusal, Request, Summary};
use kvasir_exec::Executor;
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use serde::Serialize;
use std::time::Instant;

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked.
    pub workload: String,
    /// Requests.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Of those, found in the cache.
    pub cached_tokens: u64,
    /// Tokens of their answers.
    pub output_tokens: u64,
    /// From the first step to the last.
    pub seconds: f64,
    /// Answered tokens per second.
    pub output_rate: f64,
    /// Tokens of prompts and answers per second.
    pub total_rate: f64,
    /// Time to the first token, from the start of the run.
    pub ttft: Percentiles,
    /// Time per token after the first.
    pub tpot: Percentiles,
    /// Requests that were preempted.
    pub preempted: u64,
}

/// Why there is no report.
#[derive(Debug)]
pub enum Failure {
    /// A request was refused.
    Refused(u64, Refusal),
    /// The engine stopped.
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

/// Runs all requests of `workload` that follow nobody's answer, each to its full length.
pub fn run<E: Executor>(
    engine: &mut Engine<E>,
    workload: &mut dyn Workload,
    vocab: Token,
    mut progress: impl FnMut(u64),
) -> Result<Report, Failure> {
    let mut requests = Vec::new();
    while let Some(job) = workload.next() {
        // Ids beyond a small vocabulary are folded into it.
        let prompt = job.prompt.tokens().into_iter().map(|id| id % vocab.max(1)).collect();
        let sampling = Sampling { temperature: 0.6, seed: job.tag, ..Sampling::default() };
        let params = Params { max_tokens: job.max_tokens, ignore_eos: true, sampling, ..Params::default() };
        requests.push(Request { tag: job.tag, prompt, params });
    }
    let total = requests.len() as u64;
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
    Ok(report(workload.title(), &ended, started.elapsed().as_secs_f64()))
}

fn report(workload: String, ended: &[Summary], seconds: f64) -> Report {
    let sum = |of: fn(&Summary) -> u32| ended.iter().map(|summary| u64::from(of(summary))).sum::<u64>();
    let (prompt_tokens, output_tokens) = (sum(|s| s.prompt), sum(|s| s.outputs));
    let (mut ttft, mut tpot) = (Histogram::default(), Histogram::default());
    for summary in ended {
        summary.ttft().into_iter().for_each(|time| ttft.add(time));
        summary.tpot().into_iter().for_each(|time| tpot.add(time));
    }
    Report {
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
    }
}

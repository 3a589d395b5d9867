//! `kvasir bench`: throughput of an engine, on the CPU backend beside the machine's roofline limit.
//!
//! 1. Run one uncounted warm-up repetition, then `reps` timed ones.
//! 2. Measure bandwidth and peak FLOPs before, between and after the timed work (`segments`).
//! 3. Divide measured throughput by the roofline limit (`ideal`) of the same repetition.
//!
//! CPU steal time (`stolen`) is recorded with every repetition.

pub mod fidelity;
pub(crate) mod ideal;
pub(crate) mod runner;
pub(crate) mod segments;
pub mod speculation;

use crate::bench::ideal::Ideal;
use crate::bench::runner::Runner;
use crate::bench::segments::Segments;
use crate::steal_time::StealClock;
use kvasir_cpu::{CpuModel, KvType, LimitsMeter, MachineLimits};
use kvasir_engine::{DraftStats, Engine};
use kvasir_exec::Executor;
use serde::Serialize;
use std::sync::Arc;

/// The model that a benchmark runs.
#[derive(Clone)]
pub struct Target {
    /// The model of the CPU backend, for the roofline limit; `None` for other backends.
    pub cpu: Option<Arc<CpuModel>>,
    /// Data type of K and V.
    pub kv: KvType,
    /// Bytes of K and V per token.
    pub token_bytes: usize,
    /// Vocabulary size.
    pub vocab: u32,
}

/// Packs the weights now: that must not be part of the first timed repetition.
fn pack(model: CpuModel) -> Result<Arc<CpuModel>, String> {
    model.pack().map_err(|e| e.to_string())?;
    Ok(Arc::new(model))
}

/// The benchmarked workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Prefill of one prompt.
    Prompt {
        /// Prompt length in tokens.
        tokens: u32,
    },
    /// Decode of one sequence behind an existing context.
    Generation {
        /// Number of decoded tokens.
        tokens: u32,
        /// Context length in tokens before the first decoded token.
        depth: u32,
    },
    /// Batched decode of several sequences.
    ///
    /// With `shared > 0` the sequences fork a common prefix; timing starts after that prefix and
    /// includes prefill of the private prompts. Otherwise only decode is timed.
    Streams {
        /// Number of sequences.
        streams: u32,
        /// Length of the shared prefix in tokens.
        shared: u32,
        /// Private prompt tokens per sequence, after the shared prefix.
        prompt: u32,
        /// Decoded tokens per sequence.
        tokens: u32,
    },
}

impl Work {
    /// Sequences, their shared prefix, their own prompt, and the tokens that each generates.
    fn sizes(self) -> (u32, u32, u32, u32) {
        match self {
            Self::Prompt { tokens } => (1, 0, tokens, 0),
            Self::Generation { tokens, depth } => (1, 0, depth.max(1), tokens),
            Self::Streams { streams, shared, prompt, tokens } => (streams, shared, prompt, tokens),
        }
    }

    /// Tokens of the longest sequence: prompt, the first output, and `tokens` more.
    pub fn longest(self) -> u32 {
        let (_, shared, prompt, tokens) = self.sizes();
        shared + prompt + tokens + 1
    }

    /// Rejects sequences longer than the model's maximum context.
    pub fn check(self, longest: u32) -> Result<(), String> {
        let (_, shared, prompt, tokens) = self.sizes();
        let prompt = shared + prompt;
        if prompt > longest {
            return Err(format!("the prompt has {prompt} tokens, the model takes {longest}"));
        }
        if prompt + tokens > longest {
            return Err(format!(
                "the prompt has {prompt} tokens and {tokens} follow, the model takes {longest}"
            ));
        }
        Ok(())
    }
}

/// Results of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Throughput of each repetition, in tokens per second.
    pub samples: Vec<f64>,
    /// Median of `samples`.
    pub median: f64,
    /// CPU steal share of each repetition, `None` where the system does not report it.
    pub stolen: Vec<Option<f64>>,
    /// Drafts verified and accepted, if any were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<DraftStats>,
    /// The limits of the machine, on the CPU backend.
    #[serde(flatten)]
    pub roofline: Option<Roofline>,
}

/// Throughput that the measured limits of the machine allow without speculative decoding.
#[derive(Clone, Debug, Serialize)]
pub struct Roofline {
    /// Roofline throughput of each repetition, in tokens per second.
    ///
    /// The limits are measured before and after a repetition. Long repetitions are also measured
    /// every 250 ms in between.
    pub limits: Vec<f64>,
    /// Median of `limits`.
    pub limit: f64,
    /// Median of each repetition's `sample / limit`.
    pub share: f64,
    /// The binding roofline limit: `arithmetic` or `bandwidth`.
    pub bound: &'static str,
    /// Measured read bandwidth, in bytes per second.
    pub bandwidth: f64,
    /// Measured peak FLOPs per data type.
    pub peaks: Arithmetic,
    /// SIMD instruction set used, such as AVX2, AVX-512 or AMX.
    pub level: String,
    /// Number of worker threads.
    pub threads: usize,
}

impl Measured {
    /// The highest steal share of any repetition, or `None` where the system does not report it.
    pub fn most_stolen(&self) -> Option<f64> {
        self.stolen.iter().copied().flatten().max_by(f64::total_cmp)
    }
}

/// Measured peak throughput per data type, in operations per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Arithmetic {
    /// 16-bit integer operations; bf16 operations with AMX.
    pub integer: f64,
    /// bf16 FLOPs.
    pub bf16: f64,
    /// f32 FLOPs.
    pub f32: f64,
}

/// Runs one warm-up repetition and `reps` timed ones on an idle engine. Steps of an engine on the CPU
/// backend must not overlap with scheduling: the limits are measured between them.
pub fn bench<E: Executor>(
    engine: Engine<E>,
    target: &Target,
    work: Work,
    reps: usize,
) -> Result<Measured, String> {
    let meter = target.cpu.as_ref().map(|model| {
        // Packing the weights must not be part of a timed repetition.
        model.pack().map_err(|e| e.to_string())?;
        LimitsMeter::new(model.threads()).map_err(|e| e.to_string())
    });
    let meter = meter.transpose()?;
    let step = engine.core().limits().max_num_batched_tokens;
    let ideal = target.cpu.as_ref().map(|model| (model, Ideal::of(model, target, work, step)));
    let mut segments = Segments::new(|| meter.as_ref().map(LimitsMeter::measure));
    let mut runner = Runner::new(engine, target.vocab);
    runner.once(work, &mut segments)?;
    let before = runner.draft_stats();
    let (mut samples, mut limits, mut stolen) = (Vec::new(), Vec::new(), Vec::new());
    let mut peaks = Vec::new();
    for _ in 0..reps {
        let watch = StealClock::start();
        segments.clear();
        let counted = runner.once(work, &mut segments)?;
        stolen.push(watch.share());
        samples.push(counted / segments.seconds());
        if let Some((model, ideal)) = &ideal {
            let least = segments.least_seconds(|peaks| ideal.seconds(peaks, model.precision()));
            limits.push(f64::from(self::counted(work)) / least);
        }
        peaks.extend(segments.peaks());
    }
    let roofline = ideal.map(|(model, ideal)| {
        let usual = |of: fn(&MachineLimits) -> f64| median(peaks.iter().map(of));
        let usual = MachineLimits {
            bandwidth: usual(|p| p.bandwidth),
            integer: usual(|p| p.integer),
            bf16: usual(|p| p.bf16),
            f32: usual(|p| p.f32),
        };
        let arithmetic = ideal.arithmetic(&usual, model.precision());
        Roofline {
            limit: median(limits.iter().copied()),
            share: median(samples.iter().zip(&limits).map(|(sample, limit)| sample / limit)),
            limits,
            bound: if arithmetic > ideal.bytes / usual.bandwidth { "arithmetic" } else { "bandwidth" },
            bandwidth: usual.bandwidth,
            peaks: Arithmetic { integer: usual.integer, bf16: usual.bf16, f32: usual.f32 },
            level: model.isa().to_string(),
            threads: model.threads().len(),
        }
    });
    let speculation = Some(runner.draft_stats().since(&before)).filter(|drafts| drafts.verified > 0);
    Ok(Measured { median: median(samples.iter().copied()), samples, stolen, speculation, roofline })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = |at: usize| sorted.get(at).copied().unwrap_or_default();
    (middle(sorted.len() / 2) + middle((sorted.len().max(1) - 1) / 2)) / 2.0
}

/// Tokens that throughput is computed from: prompt tokens for prefill, else decoded tokens.
fn counted(work: Work) -> u32 {
    match work {
        Work::Prompt { tokens } | Work::Generation { tokens, .. } => tokens,
        Work::Streams { streams, tokens, .. } => streams * tokens,
    }
}

//! `kvasir bench`: throughput of the CPU backend, reported beside the machine's roofline limit.
//!
//! 1. Load a checkpoint, or a known shape with random weights, and pack the weights.
//! 2. Run one uncounted warm-up repetition, then `reps` timed ones.
//! 3. Measure bandwidth and peak FLOPs before, between and after the timed work (`segments`).
//! 4. Divide measured throughput by the roofline limit (`ideal`) of the same repetition.
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
use crate::shapes::{SHAPES, shape};
use crate::steal_time::StealClock;
use kvasir_cpu::{
    CpuModel, KvType, LimitsMeter, MachineLimits, Precision, RandomWeights, ThreadPool, WeightSource,
};
use kvasir_formats::{Checkpoint, DType};
use kvasir_program::{Model, Source};
use serde::Serialize;
use std::sync::Arc;

/// Source of the weights to benchmark.
#[derive(Clone, Debug)]
pub enum Subject<'a> {
    /// An opened checkpoint.
    Checkpoint(Box<Checkpoint>),
    /// A known shape with random weights: shape name and dtype name.
    Shape(&'a str, &'a str),
}

/// Loads and packs the model. `threads: None` uses all available hardware threads.
pub fn load(
    subject: Subject<'_>,
    precision: Precision,
    threads: Option<usize>,
) -> Result<Arc<CpuModel>, String> {
    let thread_pool = Arc::new(threads.map_or_else(ThreadPool::of_machine, ThreadPool::new));
    let (source, weights): (Source, Arc<dyn WeightSource + Send + Sync>) = match subject {
        Subject::Checkpoint(checkpoint) => (checkpoint.source(), Arc::new(*checkpoint)),
        Subject::Shape(name, dtype) => {
            let config =
                shape(name).ok_or_else(|| format!("--shape: {name} is none of {}", SHAPES.join(", ")))?;
            let dtype = DType::from_name(dtype).ok_or_else(|| format!("--dtype: no type {dtype}"))?;
            (Source::of_config(config), Arc::new(RandomWeights::new(dtype)))
        }
    };
    let model = Model::build(&source).map_err(|e| e.to_string())?;
    pack(CpuModel::load(&model.target, weights, precision, thread_pool).map_err(|e| e.to_string())?)
}

/// Packs the weights now: that must not be part of the first timed repetition.
fn pack(model: CpuModel) -> Result<Arc<CpuModel>, String> {
    model.pack().map_err(|e| e.to_string())?;
    Ok(Arc::new(model))
}

/// The benchmarked workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Rejects sequences longer than the model's maximum context.
    fn check(self, longest: usize) -> Result<(), String> {
        let (prompt, tokens) = match self {
            Self::Prompt { tokens } => (tokens, 0),
            Self::Generation { tokens, depth } => (depth.max(1), tokens),
            Self::Streams { shared, prompt, tokens, .. } => (shared + prompt, tokens),
        };
        if prompt as usize > longest {
            return Err(format!("the prompt has {prompt} tokens, the model takes {longest}"));
        }
        if (prompt + tokens) as usize > longest {
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

/// Runs one warm-up repetition and `reps` timed ones. Fails if the model's context is too short.
pub fn bench(model: &Arc<CpuModel>, kv: KvType, work: Work, reps: usize) -> Result<Measured, String> {
    work.check(model.program().max_positions)?;
    let meter = LimitsMeter::new(model.threads()).map_err(|e| e.to_string())?;
    let mut runner = Runner::new(model, kv, work)?;
    let ideal = Ideal::of(model, kv, work, runner.token_bytes());
    let mut segments = Segments::new(|| meter.measure());
    runner.once(work, &mut segments)?;
    let (mut samples, mut limits, mut stolen) = (Vec::new(), Vec::new(), Vec::new());
    let mut peaks = Vec::new();
    let counted = f64::from(counted(work));
    for _ in 0..reps {
        let watch = StealClock::start();
        segments.clear();
        runner.once(work, &mut segments)?;
        stolen.push(watch.share());
        samples.push(counted / segments.seconds());
        limits.push(counted / segments.least_seconds(|peaks| ideal.seconds(peaks, model.precision())));
        peaks.extend_from_slice(segments.peaks());
    }
    let usual = |of: fn(&MachineLimits) -> f64| median(peaks.iter().map(of));
    let usual = MachineLimits {
        bandwidth: usual(|p| p.bandwidth),
        integer: usual(|p| p.integer),
        bf16: usual(|p| p.bf16),
        f32: usual(|p| p.f32),
    };
    let arithmetic = ideal.arithmetic(&usual, model.precision());
    Ok(Measured {
        median: median(samples.iter().copied()),
        stolen,
        limit: median(limits.iter().copied()),
        share: median(samples.iter().zip(&limits).map(|(sample, limit)| sample / limit)),
        samples,
        limits,
        bound: if arithmetic > ideal.bytes / usual.bandwidth { "arithmetic" } else { "bandwidth" },
        bandwidth: usual.bandwidth,
        peaks: Arithmetic { integer: usual.integer, bf16: usual.bf16, f32: usual.f32 },
        level: model.isa().to_string(),
        threads: model.threads().len(),
    })
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

//! Speed of the CPU backend, always beside its distance from what the machine can do.

mod ideal;
mod runner;
mod stretches;

use crate::shapes::{SHAPES, shape};
use crate::stolen::Watch;
use ideal::Ideal;
use kvasir_cpu::{CpuModel, KvType, PeakMeter, Peaks, Precision, RandomWeights, Team, WeightSource};
use kvasir_formats::{Checkpoint, DType};
use kvasir_program::{Model, Source};
use runner::Runner;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use stretches::Stretches;

/// Whose weights run.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A checkpoint.
    Checkpoint(&'a Path),
    /// A known shape with random weights of one type.
    Shape(&'a str, &'a str),
}

/// Loads what is to be measured.
pub fn load(
    subject: Subject<'_>,
    precision: Precision,
    threads: Option<usize>,
) -> Result<Arc<CpuModel>, String> {
    let team = Arc::new(threads.map_or_else(Team::of_machine, Team::new));
    let (source, weights): (Source, Arc<dyn WeightSource + Send + Sync>) = match subject {
        Subject::Checkpoint(path) => {
            let checkpoint = Checkpoint::open(path).map_err(|e| e.to_string())?;
            (checkpoint.source(), Arc::new(checkpoint))
        }
        Subject::Shape(name, dtype) => {
            let config =
                shape(name).ok_or_else(|| format!("--shape: {name} is none of {}", SHAPES.join(", ")))?;
            let dtype = DType::from_name(dtype).ok_or_else(|| format!("--dtype: no type {dtype}"))?;
            (Source::of_config(config), Arc::new(RandomWeights::new(dtype)))
        }
    };
    let model = Model::build(&source).map_err(|e| e.to_string())?;
    let model = CpuModel::load(&model.target, weights, precision, team).map_err(|e| e.to_string())?;
    // What is measured is how fast it gets, not how it starts.
    model.pack().map_err(|e| e.to_string())?;
    Ok(Arc::new(model))
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reading a prompt of this many tokens.
    Prompt {
        /// Its length.
        tokens: u32,
    },
    /// Writing this many tokens behind a context.
    Generation {
        /// Tokens that are written.
        tokens: u32,
        /// Length of the context.
        depth: u32,
    },
    /// Writing with several sequences at once; only that is timed. Branches of a trunk are timed from the trunk's end on, so that
    /// reading what is each one's own counts.
    Streams {
        /// Sequences.
        streams: u32,
        /// Tokens that all begin with: a trunk that they are forked off.
        shared: u32,
        /// Prompt of each, behind what is shared.
        prompt: u32,
        /// Tokens that each writes.
        tokens: u32,
    },
}

impl Work {
    /// Refuses sequences that a model cannot take.
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

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Tokens per second of each repetition.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Of each repetition, the share of the processors' time that went to other guests of the same hardware; none where the system does not say.
    pub stolen: Vec<Option<f64>>,
    /// Tokens per second of each repetition if the machine's limits were reached, which are measured before it, after it and, where it is made of many steps,
    /// every quarter of a second in between.
    pub limits: Vec<f64>,
    /// Their median.
    pub limit: f64,
    /// The median of what each repetition reached of its own limit.
    pub share: f64,
    /// Which limit binds: `arithmetic` or `bandwidth`.
    pub bound: &'static str,
    /// Measured read bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Measured peaks in operations per second.
    pub peaks: Arithmetic,
    /// Instructions used.
    pub level: String,
    /// Threads.
    pub threads: usize,
}

impl Measured {
    /// The share of the processors' time that others took in the worst of the repetitions, where the system says so.
    pub fn most_stolen(&self) -> Option<f64> {
        self.stolen.iter().copied().flatten().max_by(f64::total_cmp)
    }
}

/// Measured peaks in operations per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Arithmetic {
    /// 8-bit integers.
    pub int8: f64,
    /// bf16.
    pub bf16: f64,
    /// f32.
    pub f32: f64,
}

/// Measures `reps` repetitions after one that is not counted.
pub fn bench(model: &Arc<CpuModel>, kv: KvType, work: Work, reps: usize) -> Result<Measured, String> {
    work.check(model.program().max_positions)?;
    let meter = PeakMeter::new(model.team()).map_err(|e| e.to_string())?;
    let mut runner = Runner::new(model, kv, work)?;
    let ideal = Ideal::of(model, work, runner.token_bytes());
    let mut stretches = Stretches::new(|| meter.measure());
    runner.once(work, &mut stretches)?;
    let (mut samples, mut limits, mut stolen) = (Vec::new(), Vec::new(), Vec::new());
    let mut peaks = Vec::new();
    let counted = f64::from(counted(work));
    for _ in 0..reps {
        let watch = Watch::start();
        stretches.clear();
        runner.once(work, &mut stretches)?;
        stolen.push(watch.share());
        samples.push(counted / stretches.seconds());
        limits.push(counted / stretches.least_seconds(|peaks| ideal.seconds(peaks, model.precision())));
        peaks.extend_from_slice(stretches.peaks());
    }
    let usual = |of: fn(&Peaks) -> f64| median(peaks.iter().map(of));
    let usual = Peaks {
        bandwidth: usual(|p| p.bandwidth),
        int8: usual(|p| p.int8),
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
        peaks: Arithmetic { int8: usual.int8, bf16: usual.bf16, f32: usual.f32 },
        level: model.level().to_string(),
        threads: model.team().len(),
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = |at: usize| sorted.get(at).copied().unwrap_or_default();
    (middle(sorted.len() / 2) + middle((sorted.len().max(1) - 1) / 2)) / 2.0
}

fn counted(work: Work) -> u32 {
    match work {
        Work::Prompt { tokens } | Work::Generation { tokens, .. } => tokens,
        Work::Streams { streams, tokens, .. } => streams * tokens,
    }
}

//! `kvasir bench fidelity`: how far the default arithmetic is from exact arithmetic, on one text.
//!
//! 1. Load the model twice: with [`Precision::F32`] and an f32 pool, and as the user runs it.
//! 2. Feed the text to both, a window of the context at a time, in chunks of [`CHUNK`] tokens.
//! 3. Compare the logits at every position (`divergence`), and with `layers` the residual streams
//!    between layers (`layer_errors`).
//!
//! Results are batch-invariant, so neither the chunk nor the number of threads changes a figure.

pub(crate) mod divergence;
pub(crate) mod forward;
pub(crate) mod layer_errors;

use crate::bench::fidelity::divergence::{Divergence, LogitErrors};
use crate::bench::fidelity::forward::Forward;
use crate::bench::fidelity::layer_errors::{LayerError, LayerErrors};
use crate::bench::pack;
use kvasir_cpu::{CpuModel, KvType, Precision, ThreadPool};
use kvasir_formats::Checkpoint;
use kvasir_kv::Token;
use kvasir_program::{Model, Tap};
use serde::Serialize;
use std::sync::Arc;

/// Tokens per step. The logits of a chunk are in memory at once, for both models.
const CHUNK: usize = 64;
/// Longest context of a position, in tokens: as long as chats are, and short enough for exact
/// attention.
const WINDOW: usize = 2048;

/// An English text with prose, speech, numbers and a list.
pub const TEXT: &str = include_str!("text.txt");

/// A comparison of the default arithmetic with exact arithmetic.
#[derive(Clone, Debug)]
pub struct FidelityBench {
    /// The text, as token ids.
    pub text: Vec<Token>,
    /// Type of K and V of the default; `None` for the model's own.
    pub kv: Option<KvType>,
    /// Worker threads; `None` for all.
    pub threads: Option<usize>,
    /// Compare the layers' outputs, too.
    pub layers: bool,
}

/// Errors of the default arithmetic against exact arithmetic.
#[derive(Clone, Debug, Serialize)]
pub struct FidelityReport {
    /// Tokens of the text.
    pub tokens: usize,
    /// Type of K and V of the default.
    pub kv_dtype: String,
    /// Instruction set of the default.
    pub isa: String,
    /// Errors of the logits.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Errors of the layers' outputs, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerError>,
}

impl FidelityBench {
    /// Runs both models over the text. `progress` receives the number of tokens that are done.
    pub fn run(&self, checkpoint: &Checkpoint, progress: impl Fn(usize)) -> Result<FidelityReport, String> {
        let exact = self.load(checkpoint, Precision::F32)?;
        let default = self.load(checkpoint, Precision::Auto)?;
        let kv = self.kv.unwrap_or_else(|| default.natural_kv());
        let window = WINDOW.min(default.program().max_positions);
        let (mut errors, mut layer_errors) = (LogitErrors::default(), LayerErrors::default());
        let mut done = 0;
        for part in self.text.chunks(window) {
            let mut exact_pass = Forward::new(&exact, KvType::F32, part.len())?;
            let mut default_pass = Forward::new(&default, kv, part.len())?;
            for (number, chunk) in part.chunks(CHUNK).enumerate() {
                let reference = exact_pass.feed(chunk)?;
                let tested = default_pass.feed(chunk)?;
                // The first token behind the window has no target: its context is not this one.
                let targets = part.iter().skip(number * CHUNK + 1).map(|token| Some(*token)).chain([None]);
                for ((exact, default), target) in reference.iter().zip(tested.iter()).zip(targets) {
                    errors.add(exact, default, target);
                }
                if self.layers {
                    layer_errors
                        .add(|tap| Some((exact_pass.tap(tap)?, default_pass.tap(tap)?)), &taps(&exact));
                }
                done += chunk.len();
                progress(done);
            }
        }
        Ok(FidelityReport {
            tokens: self.text.len(),
            kv_dtype: kv.to_string(),
            isa: default.isa().to_string(),
            divergence: errors.divergence(),
            layers: layer_errors.relative(),
        })
    }

    fn load(&self, checkpoint: &Checkpoint, precision: Precision) -> Result<Arc<CpuModel>, String> {
        let threads = Arc::new(self.threads.map_or_else(ThreadPool::of_machine, ThreadPool::new));
        let program = Model::build(&checkpoint.source()).map_err(|e| e.to_string())?.target;
        let weights = Arc::new(checkpoint.clone());
        let model = CpuModel::load(&program, weights, precision, threads).map_err(|e| e.to_string())?;
        let kept = if self.layers { taps(&model) } else { Vec::new() };
        pack(model.keeping(&kept).map_err(|e| e.to_string())?)
    }
}

/// The residual streams that leave each layer.
fn taps(model: &CpuModel) -> Vec<Tap> {
    let layers = model.program().layers.len() as u32;
    (1..layers).map(Tap::IntoLayer).chain([Tap::OutOfLastLayer]).collect()
}

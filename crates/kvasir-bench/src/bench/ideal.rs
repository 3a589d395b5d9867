//! Roofline model of a benchmark: FLOPs per precision and a lower bound on the bytes moved.
//!
//! `seconds = max(FLOPs / peak FLOPs, bytes / bandwidth)`. FLOPs are split by GEMM input type and
//! attention. Bytes are the weights once per step, the K/V rows that attention reads, and the
//! recurrent states of each sequence, read and written once per step.

use crate::bench::{Target, Work, counted};
use kvasir_cpu::{CpuModel, Form, MachineLimits, Precision};

/// Lower bounds of operations and memory traffic for one repetition.
#[derive(Default)]
pub(crate) struct Ideal {
    quantized: f64,
    bf16: f64,
    f32: f64,
    attention: f64,
    /// Whether attention computes in f32, as it does for K and V of f32 or f16.
    attends_in_f32: bool,
    pub(super) bytes: f64,
}

impl Ideal {
    /// Counts one repetition of `work` on `target`, whose model is `model`. `longest_step` is the
    /// maximum tokens of a step.
    pub(super) fn of(model: &CpuModel, target: &Target, work: Work, longest_step: u32) -> Self {
        let mut ideal = Self { attends_in_f32: target.kv.needs_f32_attention(), ..Self::default() };
        let all = f64::from(counted(work));
        // Prefill needs logits (the LM head) for the last prompt token only.
        let heads = if matches!(work, Work::Prompt { .. }) { 1.0 } else { all };
        let (inner, whole) = (model.multiply_adds(false), model.multiply_adds(true));
        for (form, count) in &whole {
            let inner = inner.get(form).copied().unwrap_or_default();
            let operations = 2.0 * (inner as f64 * all + (count - inner) as f64 * heads);
            match form {
                Form::Quantized => ideal.quantized += operations,
                Form::Bf16 => ideal.bf16 += operations,
                Form::F16 | Form::F32 => ideal.f32 += operations,
            }
        }
        let (streams, steps, first) = match work {
            Work::Prompt { tokens } => (1, tokens.div_ceil(longest_step), 0),
            Work::Generation { tokens, depth } => (1, tokens, depth),
            Work::Streams { streams, shared, prompt, tokens } => (streams, tokens, shared + prompt),
        };
        let at_once = counted(work) / steps.max(1);
        let each = counted(work) / streams;
        let seen = |window: Option<u32>| -> f64 {
            (first..first + each).map(|p| f64::from(window.map_or(p + 1, |w| w.min(p + 1)))).sum::<f64>()
                * f64::from(streams)
        };
        for op in &model.program().ops {
            if let kvasir_program::Op::UpdateAndAttend { q, layer, .. } = op
                && let Some(facts) = model.program().layers.get(layer.0 as usize)
            {
                let heads = model.program().value(*q).width() / facts.key_dim.max(1);
                ideal.attention +=
                    2.0 * (heads * (facts.key_dim + facts.value_dim)) as f64 * seen(facts.window);
            }
        }
        // A prefill chunk reads each K/V row once for all its tokens. A shared prefix is read once
        // for all sequences.
        let rows = match work {
            Work::Prompt { .. } => f64::from(each),
            Work::Generation { .. } => seen(None),
            Work::Streams { streams, shared, tokens, .. } => {
                seen(None) - f64::from(streams - 1) * f64::from(shared) * f64::from(tokens)
            }
        };
        let states = model.state_bytes() * f64::from(steps) * f64::from(streams);
        ideal.bytes =
            model.bytes_read(at_once) * f64::from(steps) + rows * target.token_bytes as f64 + states;
        ideal
    }

    /// Compute-bound time in seconds at the measured peaks.
    pub(super) fn arithmetic(&self, peaks: &MachineLimits, precision: Precision) -> f64 {
        let attention = if self.attends_in_f32 { peaks.f32 } else { peaks.bf16 };
        let times = if precision == Precision::Bf16x2 { 2.0 } else { 1.0 };
        self.quantized / peaks.integer
            + self.bf16 * times / peaks.bf16
            + self.f32 / peaks.f32
            + self.attention / attention
    }

    /// Roofline time in seconds: the larger of compute time and memory time.
    pub(super) fn seconds(&self, peaks: &MachineLimits, precision: Precision) -> f64 {
        self.arithmetic(peaks, precision).max(self.bytes / peaks.bandwidth)
    }
}

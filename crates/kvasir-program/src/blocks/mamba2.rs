//! The Mamba-2 block: input projection, short convolution, selective scan, gated norm, output
//! projection.
//!
//! ```text
//! z, xBC, dt = in_proj · input
//! x, B, C    = silu(conv(xBC))
//! y          = scan(x, B, C, dt)
//! out        = out_proj · (rms(y * silu(z)) * w)      in groups
//! ```

use crate::builder::Builder;
use crate::builder::config::Config;
use crate::builder::recurrent::{Convolution, ScanOperands};
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::recurrent::{DecayRate, ScanForm};
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrix, Role};

/// Sizes of a Mamba-2 block.
#[derive(Clone, Copy)]
pub(crate) struct Mamba2 {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) groups: usize,
    pub(crate) state_dim: usize,
    pub(crate) kernel: usize,
    pub(crate) conv_bias: bool,
    pub(crate) proj_bias: bool,
    /// Bounds of the time step.
    pub(crate) dt_limits: (f32, Option<f32>),
    /// The norm behind the scan; `None` only gates.
    pub(crate) norm: Option<GatedNorm>,
    /// Factors of z, x, B, C and dt (Falcon-H1).
    pub(crate) factors: [f64; 5],
}

/// The norm of a scan's result, in groups.
#[derive(Clone, Copy)]
pub(crate) struct GatedNorm {
    pub(crate) eps: f64,
    /// Whether the gate follows the norm.
    pub(crate) before_gate: bool,
}

/// Reads `time_step_limit`; an absent or infinite bound is none.
pub(crate) fn dt_limits(c: Config<'_>) -> Result<(f32, Option<f32>)> {
    let Some(limits) = c.get("time_step_limit") else { return Ok((0.0, None)) };
    match limits.as_array().map(Vec::as_slice) {
        Some([least, most]) => {
            let bound = |value: &serde_json::Value| value.as_f64().map(|value| value as f32);
            Ok((bound(least).unwrap_or(0.0).max(0.0), bound(most).filter(|most| most.is_finite())))
        }
        _ => Err(c.bad("time_step_limit", "is not a list of two numbers")),
    }
}

impl Mamba2 {
    /// Builds the block; its tensor names start with `p`.
    pub(crate) fn build(&self, b: &mut Builder<'_>, p: &str, input: ValueId) -> Result<ValueId> {
        let (inner, shared) = (self.heads * self.head_dim, self.groups * self.state_dim);
        let channels = inner + 2 * shared;
        let (rows, hidden) = (inner + channels + self.heads, b.program.hidden);
        let all = b.matrix(&format!("{p}in_proj"), rows, hidden, self.proj_bias, Role::Matrix)?;
        let z = self.part(b, input, all, 0, inner, self.factors[0])?;
        let inputs = self.inputs(b, input, all)?;
        let dt = self.part(b, input, all, inner + channels, self.heads, self.factors[4])?;
        let conv = self.convolution(b, p, channels)?;
        let mixed = b.short_conv(inputs, conv);
        let (x, first) = (b.slice(mixed, 1, 0, inner)?, b.slice(mixed, 1, inner, shared)?);
        let second = b.slice(mixed, 1, inner + shared, shared)?;
        let form = self.form(b, p)?;
        let y = b.selective_scan(ScanOperands { x, b: first, c: second, dt }, form)?;
        let y = match self.norm {
            None => b.gate(z, y, Activation::Silu)?,
            Some(GatedNorm { eps, before_gate: true }) => {
                let y = b.grouped_rms(y, &format!("{p}norm.weight"), self.groups, eps)?;
                b.gate(z, y, Activation::Silu)?
            }
            Some(GatedNorm { eps, before_gate: false }) => {
                let y = b.gate(z, y, Activation::Silu)?;
                b.grouped_rms(y, &format!("{p}norm.weight"), self.groups, eps)?
            }
        };
        let out = b.matrix(&format!("{p}out_proj"), hidden, inner, self.proj_bias, Role::Matrix)?;
        b.linear(y, out)
    }

    /// Some outputs of the input projection, times their factor.
    fn part(
        &self,
        b: &mut Builder<'_>,
        x: ValueId,
        all: Matrix,
        start: usize,
        width: usize,
        factor: f64,
    ) -> Result<ValueId> {
        let y = b.linear(x, all.slice_outputs(start..start + width))?;
        Ok(b.scale(y, factor))
    }

    /// The convolution's inputs: x, B and C in one row.
    fn inputs(&self, b: &mut Builder<'_>, input: ValueId, all: Matrix) -> Result<ValueId> {
        let (inner, shared) = (self.heads * self.head_dim, self.groups * self.state_dim);
        let [_, x, first, second, _] = self.factors;
        if x == first && x == second {
            return self.part(b, input, all, inner, inner + 2 * shared, x);
        }
        let x = self.part(b, input, all, inner, inner, x)?;
        let first = self.part(b, input, all, 2 * inner, shared, first)?;
        let second = self.part(b, input, all, 2 * inner + shared, shared, second)?;
        let both = b.concat(x, first, 1)?;
        b.concat(both, second, 1)
    }

    fn convolution(&self, b: &mut Builder<'_>, p: &str, channels: usize) -> Result<Convolution> {
        let weight = b.conv_weight(&format!("{p}conv1d.weight"), channels, self.kernel)?;
        let bias = if self.conv_bias {
            Some(b.weight(&format!("{p}conv1d.bias"), &[channels], Role::Bias)?)
        } else {
            None
        };
        Ok(Convolution { weight, bias, kernel: self.kernel, silu: true })
    }

    fn form(&self, b: &mut Builder<'_>, p: &str) -> Result<ScanForm> {
        let stored = b.source.layout.ssm_tensors;
        let column: &[usize] = if stored { &[self.heads, 1] } else { &[self.heads] };
        Ok(ScanForm {
            heads: self.heads,
            head_dim: self.head_dim,
            groups: self.groups,
            state_dim: self.state_dim,
            decay: b.weight(&format!("{p}A_log"), column, Role::Recurrence)?,
            decay_rate: if stored { DecayRate::Rate } else { DecayRate::Logarithm },
            dt_bias: b.weight(&format!("{p}dt_bias"), &[self.heads], Role::Recurrence)?,
            skip: b.weight(&format!("{p}D"), column, Role::Recurrence)?,
            dt_limits: self.dt_limits,
        })
    }
}

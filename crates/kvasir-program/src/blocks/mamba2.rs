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
use crate::ir::recurrent::{DecayRate, ScanForm, TimeStepLimits};
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrix, Role};

/// A Mamba-2 block.
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
    pub(crate) dt_limits: TimeStepLimits,
    /// The norm after the scan; `None` for a gate without a norm.
    pub(crate) norm: Option<GatedNorm>,
    /// Multipliers of z, x, B, C and dt (Falcon-H1).
    pub(crate) factors: [f64; 5],
}

/// The gated norm of the scan's result, in groups.
#[derive(Clone, Copy)]
pub(crate) struct GatedNorm {
    pub(crate) eps: f64,
    /// Whether the norm is applied before the gate.
    pub(crate) before_gate: bool,
}

/// Reads `time_step_limit`. An absent or infinite upper bound is `None`.
pub(crate) fn dt_limits(c: Config<'_>) -> Result<TimeStepLimits> {
    let Some(limits) = c.get("time_step_limit") else { return Ok(TimeStepLimits { min: 0.0, max: None }) };
    match limits.as_array().map(Vec::as_slice) {
        Some([min, max]) => {
            let bound = |value: &serde_json::Value| value.as_f64().map(|value| value as f32);
            Ok(TimeStepLimits {
                min: bound(min).unwrap_or(0.0).max(0.0),
                max: bound(max).filter(|max| max.is_finite()),
            })
        }
        _ => Err(c.bad("time_step_limit", "is not a list of two numbers")),
    }
}

impl Mamba2 {
    /// Builds the block; its tensor names start with `p`.
    pub(crate) fn build(&self, b: &mut Builder<'_>, p: &str, input: ValueId) -> Result<ValueId> {
        let (inner, group_width) = (self.heads * self.head_dim, self.groups * self.state_dim);
        let channels = inner + 2 * group_width;
        let (rows, hidden) = (inner + channels + self.heads, b.program.hidden);
        let all = b.matrix(&format!("{p}in_proj"), rows, hidden, self.proj_bias, Role::Matrix)?;
        let z = self.part(b, input, all, 0, inner, self.factors[0])?;
        let xbc = self.xbc(b, input, all)?;
        let dt = self.part(b, input, all, inner + channels, self.heads, self.factors[4])?;
        let conv = b.convolution(&format!("{p}conv1d"), channels, self.kernel, self.conv_bias)?;
        let mixed = b.short_conv(xbc, Convolution { silu: true, ..conv });
        let x = b.slice(mixed, 1, 0, inner)?;
        let b_part = b.slice(mixed, 1, inner, group_width)?;
        let c_part = b.slice(mixed, 1, inner + group_width, group_width)?;
        let form = self.form(b, p)?;
        let y = b.selective_scan(ScanOperands { x, b: b_part, c: c_part, dt }, form)?;
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

    /// Outputs `start .. start + width` of the input projection, times a factor.
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
    fn xbc(&self, b: &mut Builder<'_>, input: ValueId, all: Matrix) -> Result<ValueId> {
        let (inner, group_width) = (self.heads * self.head_dim, self.groups * self.state_dim);
        let [_, x_factor, b_factor, c_factor, _] = self.factors;
        if x_factor == b_factor && x_factor == c_factor {
            return self.part(b, input, all, inner, inner + 2 * group_width, x_factor);
        }
        let x = self.part(b, input, all, inner, inner, x_factor)?;
        let b_part = self.part(b, input, all, 2 * inner, group_width, b_factor)?;
        let c_part = self.part(b, input, all, 2 * inner + group_width, group_width, c_factor)?;
        let xb = b.concat(x, b_part, 1)?;
        b.concat(xb, c_part, 1)
    }

    fn form(&self, b: &mut Builder<'_>, p: &str) -> Result<ScanForm> {
        let is_gguf = b.source.layout.ssm_tensors;
        let column: &[usize] = if is_gguf { &[self.heads, 1] } else { &[self.heads] };
        Ok(ScanForm {
            heads: self.heads,
            head_dim: self.head_dim,
            groups: self.groups,
            state_dim: self.state_dim,
            decay: b.weight(&format!("{p}A_log"), column, Role::Recurrence)?,
            decay_rate: if is_gguf { DecayRate::Rate } else { DecayRate::Logarithm },
            dt_bias: b.weight(&format!("{p}dt_bias"), &[self.heads], Role::Recurrence)?,
            skip: b.weight(&format!("{p}D"), column, Role::Recurrence)?,
            dt_limits: self.dt_limits,
        })
    }
}

//! The Gated DeltaNet block: projections, short convolution, gated delta rule, gated norm per head.
//!
//! ```text
//! q, k, v = silu(conv(in_proj · x))        z, a, b = other projections of x
//! o       = delta(q, k, v, decay a, β b)
//! out     = out_proj · (rms(o) * w * gate(z))       gate = silu or sigmoid
//! ```

use crate::builder::Builder;
use crate::builder::config::Config;
use crate::builder::recurrent::{Convolution, DeltaOperands};
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::op::NormKind;
use crate::ir::recurrent::{DecayGate, DecayRate, DeltaForm, HeadMap};
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// A Gated DeltaNet block.
#[derive(Clone, Copy)]
pub(crate) struct GatedDeltaNet {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kernel: usize,
    eps: f64,
    /// Activation of the output gate.
    gate: Activation,
    /// Qwen3-Next: one projection of q, k, v and z and one of b and a, with rows ordered by key
    /// head.
    by_key_head: bool,
}

/// The projections of a block's input.
struct Projected {
    qkv: ValueId,
    z: ValueId,
    a: ValueId,
    b: ValueId,
}

impl GatedDeltaNet {
    pub(crate) fn read(c: Config<'_>, by_key_head: bool) -> Result<Self> {
        let net = Self {
            key_heads: c.size("linear_num_key_heads")?,
            value_heads: c.size("linear_num_value_heads")?,
            key_dim: c.size("linear_key_head_dim")?,
            value_dim: c.size("linear_value_head_dim")?,
            kernel: c.size("linear_conv_kernel_dim")?,
            eps: c.amount_or("rms_norm_eps", 1e-6)?,
            gate: match c.text("output_gate_type")?.unwrap_or("silu") {
                "silu" | "swish" => Activation::Silu,
                "sigmoid" => Activation::Sigmoid,
                other => {
                    return Err(c.bad("output_gate_type", format!("is {other:?}, which is not supported")));
                }
            },
            by_key_head,
        };
        if !net.value_heads.is_multiple_of(net.key_heads) {
            let why = format!("is {}, not a multiple of {} key heads", net.value_heads, net.key_heads);
            return Err(c.bad("linear_num_value_heads", why));
        }
        Ok(net)
    }

    /// Builds the block of a layer.
    pub(crate) fn build(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId> {
        let p = format!("model.layers.{layer}.linear_attn.");
        let (keys, values) = (self.key_heads * self.key_dim, self.value_heads * self.value_dim);
        let Projected { qkv, z, a, b: beta } = self.project(b, &p, x)?;
        let conv = b.convolution(&format!("{p}conv1d"), 2 * keys + values, self.kernel, false)?;
        let qkv = b.short_conv(qkv, Convolution { silu: true, ..conv });
        let (q, k) = (b.slice(qkv, 1, 0, keys)?, b.slice(qkv, 1, keys, keys)?);
        let v = b.slice(qkv, 1, 2 * keys, values)?;
        let form = self.form(b, &p)?;
        let o = b.gated_delta(DeltaOperands { q, k, v, decay: a, beta }, form)?;
        // Unlike the other norms of Qwen3.5, this one has no offset of one.
        let o = b.norm(o, NormKind::Rms, &format!("{p}norm"), self.value_heads, self.eps)?;
        let y = b.gate(z, o, self.gate)?;
        let out = b.matrix(&format!("{p}out_proj"), b.program.hidden, values, false, Role::Matrix)?;
        b.linear(y, out)
    }

    fn project(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<Projected> {
        let (keys, values) = (self.key_heads * self.key_dim, self.value_heads * self.value_dim);
        let hidden = b.program.hidden;
        let one = |b: &mut Builder<'_>, name: &str, width: usize| {
            let matrix = b.matrix(&format!("{p}{name}"), width, hidden, false, Role::Matrix)?;
            b.linear(x, matrix)
        };
        let (qkv, z) = if self.by_key_head && !b.source.layout.ssm_tensors {
            let all = one(b, "in_proj_qkvz", 2 * keys + 2 * values)?;
            let per_key_head = self.value_heads / self.key_heads * self.value_dim;
            let part = |b: &mut Builder<'_>, start, width| b.slice(all, self.key_heads, start, width);
            let (q, k) = (part(b, 0, self.key_dim)?, part(b, self.key_dim, self.key_dim)?);
            let v = part(b, 2 * self.key_dim, per_key_head)?;
            let z = part(b, 2 * self.key_dim + per_key_head, per_key_head)?;
            let qk = b.concat(q, k, 1)?;
            (b.concat(qk, v, 1)?, z)
        } else {
            (one(b, "in_proj_qkv", 2 * keys + values)?, one(b, "in_proj_z", values)?)
        };
        if self.by_key_head {
            let both = one(b, "in_proj_ba", 2 * self.value_heads)?;
            let per_key_head = self.value_heads / self.key_heads;
            let beta = b.slice(both, self.key_heads, 0, per_key_head)?;
            let a = b.slice(both, self.key_heads, per_key_head, per_key_head)?;
            return Ok(Projected { qkv, z, a, b: beta });
        }
        let a = one(b, "in_proj_a", self.value_heads)?;
        let beta = one(b, "in_proj_b", self.value_heads)?;
        Ok(Projected { qkv, z, a, b: beta })
    }

    fn form(&self, b: &mut Builder<'_>, p: &str) -> Result<DeltaForm> {
        let layout = b.source.layout;
        Ok(DeltaForm {
            key_heads: self.key_heads,
            value_heads: self.value_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            head_map: if layout.tiled_value_heads { HeadMap::Tiled } else { HeadMap::Grouped },
            decay: b.weight(&format!("{p}A_log"), &[self.value_heads], Role::Recurrence)?,
            decay_rate: if layout.ssm_tensors { DecayRate::Rate } else { DecayRate::Logarithm },
            dt_bias: b.weight(&format!("{p}dt_bias"), &[self.value_heads], Role::Recurrence)?,
            gate: DecayGate::Head,
        })
    }
}

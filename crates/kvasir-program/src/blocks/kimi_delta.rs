//! Kimi Delta Attention (KDA): the gated delta rule with a decay per key channel, and an output
//! gate of low rank.
//!
//! ```text
//! q, k, v = silu(conv(proj · x)), each with its own convolution
//! o       = gated_delta(q, k, v, decay = f_b · f_a · x, beta = b_proj · x)
//! out     = o_proj · (rms(o) * w * sigmoid(g_b · g_a · x))
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

/// A KDA block. Queries, keys and values have the same heads.
#[derive(Clone, Copy)]
pub(crate) struct KimiDelta {
    heads: usize,
    head_dim: usize,
    kernel: usize,
    eps: f64,
    gate: DecayGate,
}

impl KimiDelta {
    /// Reads `linear_attn_config`.
    pub(crate) fn read(c: Config<'_>) -> Result<Self> {
        let linear = linear_attn_config(c)?;
        Ok(Self {
            heads: linear.size("num_heads")?,
            head_dim: linear.size("head_dim")?,
            kernel: linear.size_or("short_conv_kernel_size", 4)?,
            eps: c.amount_or("rms_norm_eps", 1e-6)?,
            gate: match linear.opt_float("gate_lower_bound")? {
                None => DecayGate::Channel,
                Some(bound) if bound < 0.0 && (bound as f32).is_finite() => {
                    DecayGate::BoundedChannel { lower_bound: bound as f32 }
                }
                Some(other) => {
                    return Err(linear.bad("gate_lower_bound", format!("is {other}, not a negative number")));
                }
            },
        })
    }

    /// Builds the block of a layer.
    pub(crate) fn build(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId> {
        let p = format!("model.layers.{layer}.self_attn.");
        let (hidden, width) = (b.program.hidden, self.heads * self.head_dim);
        let [q, k, v] = ["q", "k", "v"].map(|name| self.conv_projection(b, &p, name, x));
        let decay = self.low_rank_projection(b, &p, "f", x)?;
        let beta = b.matrix(&format!("{p}b_proj"), self.heads, hidden, false, Role::Matrix)?;
        let beta = b.linear(x, beta)?;
        let form = self.form(b, &p)?;
        let o = b.gated_delta(DeltaOperands { q: q?, k: k?, v: v?, decay, beta }, form)?;
        let o = b.norm(o, NormKind::Rms, &format!("{p}o_norm"), self.heads, self.eps)?;
        let gate = self.low_rank_projection(b, &p, "g", x)?;
        let y = b.gate(gate, o, Activation::Sigmoid)?;
        let out = b.matrix(&format!("{p}o_proj"), hidden, width, false, Role::Matrix)?;
        b.linear(y, out)
    }

    /// `silu(conv({name}_proj · x))`.
    fn conv_projection(&self, b: &mut Builder<'_>, p: &str, name: &str, x: ValueId) -> Result<ValueId> {
        let width = self.heads * self.head_dim;
        let matrix = b.matrix(&format!("{p}{name}_proj"), width, b.program.hidden, false, Role::Matrix)?;
        let y = b.linear(x, matrix)?;
        let conv = b.convolution(&format!("{p}{name}_conv1d"), width, self.kernel, false)?;
        Ok(b.short_conv(y, Convolution { silu: true, ..conv }))
    }

    /// `{name}_b_proj · {name}_a_proj · x`; the rank is the width of a head.
    fn low_rank_projection(&self, b: &mut Builder<'_>, p: &str, name: &str, x: ValueId) -> Result<ValueId> {
        let (rank, width) = (self.head_dim, self.heads * self.head_dim);
        let down = b.matrix(&format!("{p}{name}_a_proj"), rank, b.program.hidden, false, Role::Matrix)?;
        let up = b.matrix(&format!("{p}{name}_b_proj"), width, rank, false, Role::Matrix)?;
        let low = b.linear(x, down)?;
        b.linear(low, up)
    }

    fn form(&self, b: &mut Builder<'_>, p: &str) -> Result<DeltaForm> {
        let is_rate = b.source.layout.ssm_tensors;
        Ok(DeltaForm {
            key_heads: self.heads,
            value_heads: self.heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            head_map: HeadMap::Grouped,
            decay: b.weight_with_unit_dims(&format!("{p}A_log"), &[self.heads], Role::Recurrence)?,
            decay_rate: if is_rate { DecayRate::Rate } else { DecayRate::Logarithm },
            dt_bias: b.weight(&format!("{p}dt_bias"), &[self.heads * self.head_dim], Role::Recurrence)?,
            gate: self.gate,
        })
    }
}

/// Config key of the settings of KDA.
pub(crate) const LINEAR_ATTN_CONFIG: &str = "linear_attn_config";

/// The settings of KDA; fails if there are none.
pub(crate) fn linear_attn_config(c: Config<'_>) -> Result<Config<'_>> {
    c.object(LINEAR_ATTN_CONFIG)?.ok_or_else(|| c.bad(LINEAR_ATTN_CONFIG, "is missing"))
}

/// Whether each layer is KDA, from the lists `kda_layers` and `full_attn_layers`, whose layer
/// numbers start at 1.
pub(crate) fn kda_layers(c: Config<'_>) -> Result<Vec<bool>> {
    let linear = linear_attn_config(c)?;
    let (kda, full) = (linear.counts("kda_layers")?, linear.counts("full_attn_layers")?);
    let of_layer = |number: usize| match (kda.contains(&number), full.contains(&number)) {
        (true, true) => {
            Err(linear.bad("kda_layers", format!("and full_attn_layers both list layer {number}")))
        }
        (false, false) => Err(linear.bad("kda_layers", format!("and full_attn_layers lack layer {number}"))),
        (is_kda, _) => Ok(is_kda),
    };
    (1..=c.number("num_hidden_layers")?).map(of_layer).collect()
}

//! The layers of LFM2: `x += op(norm(x))`, then `x += ffn(norm(x))`.
//!
//! A convolution layer is `out_proj · (C * conv(B * u))` with B, C and u the thirds of `in_proj ·
//! x`.

use crate::blocks::attention::{Attention, Names};
use crate::blocks::decoder::{Norms, stack};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::routed::Routed;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::{Builder, Logits};
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// The feed-forward blocks of the layers.
pub(crate) struct FeedForwards {
    pub(crate) dense: FeedForward,
    /// The MoE, and the first layer that has it.
    pub(crate) moe: Option<(Routed, usize)>,
}

/// Tensor names of the gate, up and down projections.
pub(crate) const DENSE_NAMES: [&str; 3] = ["w1", "w3", "w2"];

/// Whether each layer is a convolution.
pub(crate) fn convolution_layers(c: Config<'_>) -> Result<Vec<bool>> {
    let layers = c.number("num_hidden_layers")?;
    let kinds = [("conv", true), ("full_attention", false)];
    if let Some(listed) = c.by_layer_kind("layer_types", layers, kinds)? {
        return Ok(listed);
    }
    let attending = c.counts("full_attn_idxs")?;
    let absent = c.get("full_attn_idxs").is_none();
    Ok((0..layers).map(|layer| !absent && !attending.contains(&layer)).collect())
}

/// Builds the target.
pub(crate) fn target(b: &mut Builder<'_>, feed_forwards: &FeedForwards) -> Result<()> {
    let (c, norms) = (b.config, Norms::rms(b.config)?);
    let names = Names { q_norm: "q_layernorm", k_norm: "k_layernorm", output: "out_proj" };
    let attention = Attention { norms: Some(norms), names, ..Attention::read(c)? };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    let convolutions = convolution_layers(c)?;
    let embedding = b.embed(1.0)?;
    stack(b, embedding, norms, "model.embedding_norm", Logits::PLAIN, |b, i, x| {
        let p = format!("model.layers.{i}.");
        let h = norms.row(b, x, &format!("{p}operator_norm"))?;
        let h = if convolutions.get(i) == Some(&true) {
            convolution(b, &format!("{p}conv."), h)?
        } else {
            attention.build(b, i, h, rope, None)?
        };
        let x = b.add(x, h)?;
        let h = norms.row(b, x, &format!("{p}ffn_norm"))?;
        let p = format!("{p}feed_forward.");
        let h = match &feed_forwards.moe {
            Some((moe, first)) if i >= *first => moe.build(b, &p, h)?,
            _ => feed_forwards.dense.build(b, &p, h)?,
        };
        b.add(x, h)
    })
}

fn convolution(b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<ValueId> {
    let (hidden, bias) = (b.program.hidden, b.config.flag_or("conv_bias", false)?);
    let kernel = b.config.size("conv_L_cache")?;
    let all = b.matrix(&format!("{p}in_proj"), 3 * hidden, hidden, bias, Role::Matrix)?;
    let projection =
        |b: &mut Builder<'_>, n: usize| b.linear(x, all.slice_outputs(n * hidden..(n + 1) * hidden));
    let (b_gate, c_gate, u) = (projection(b, 0)?, projection(b, 1)?, projection(b, 2)?);
    let y = b.gate(b_gate, u, Activation::Identity)?;
    let conv = b.convolution(&format!("{p}conv"), hidden, kernel, bias)?;
    let y = b.short_conv(y, conv);
    let y = b.gate(c_gate, y, Activation::Identity)?;
    let out = b.matrix(&format!("{p}out_proj"), hidden, hidden, bias, Role::Matrix)?;
    b.linear(y, out)
}

//! Gemma 3, text only: a norm before and after both attention and feed-forward, and alternating
//! sliding-window and full-attention layers with a rope each.

use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::listed_windows;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::ir::op::NormKind;

pub(crate) fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    if c.flag_or("use_bidirectional_attention", false)? {
        return Err(
            c.bad("use_bidirectional_attention", "is true: a model that sees what follows cannot generate")
        );
    }
    let kind = if b.source.layout.norm_plus_one { NormKind::Rms } else { NormKind::RmsPlusOne };
    let norms = Norms { kind, ..Norms::rms(c)? };
    let bias = c.flag_or("attention_bias", false)?;
    let attention = Attention::read(c)?;
    let attention = Attention {
        bias,
        out_bias: bias,
        norms: Some(norms),
        scale: c.opt_positive("query_pre_attn_scalar")?.unwrap_or(attention.head_dim as f64).powf(-0.5),
        ..attention
    };
    let ffn = FeedForward::read(c)?;
    let every = c.size_or("sliding_window_pattern", 6)?;
    let windows = listed_windows(c, |layer| !(layer + 1).is_multiple_of(every))?;
    let local = RopeConfig::of_kind(c, "sliding_attention", "rope_local_base_freq", 10_000.0)?;
    let global = RopeConfig::of_kind(c, "full_attention", "rope_theta", 1_000_000.0)?;
    let (local, global) = (attention.rope(b, local, 1.0)?, attention.rope(b, global, 1.0)?);
    let scale = (b.program.hidden as f64).sqrt();
    decoder(b, scale, norms, |b, i, x| {
        let p = format!("model.layers.{i}.");
        let window = windows.get(i).copied().flatten();
        let rope = if window.is_some() { local } else { global };
        let h = norms.row(b, x, &format!("{p}input_layernorm"))?;
        let h = attention.build(b, i, h, rope, window)?;
        let h = norms.row(b, h, &format!("{p}post_attention_layernorm"))?;
        let x = b.add(x, h)?;
        let h = norms.row(b, x, &format!("{p}pre_feedforward_layernorm"))?;
        let h = ffn.build(b, &format!("{p}mlp."), h)?;
        let h = norms.row(b, h, &format!("{p}post_feedforward_layernorm"))?;
        b.add(x, h)
    })
}

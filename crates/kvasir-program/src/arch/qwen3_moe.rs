//! Qwen3 MoE: Qwen3's attention with a softmax top-k MoE in most layers.

use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::routed::{Routed, by_softmax};
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;

pub(crate) fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (bias, norms) = (c.flag_or("attention_bias", false)?, Norms::rms(c)?);
    let attention = Attention { bias, out_bias: bias, norms: Some(norms), ..Attention::read(c)? };
    let window = if c.flag_or("use_sliding_window", false)? { common_window(c)? } else { None };
    let (dense_layers, every) = (c.counts("mlp_only_layers")?, c.size_or("decoder_sparse_step", 1)?);
    let (count, inner) = (c.number("num_experts")?, c.size("moe_intermediate_size")?);
    let routing = by_softmax(c.size("num_experts_per_tok")?, c.flag_or("norm_topk_prob", false)?);
    let dense = FeedForward::read(c)?;
    let (names, activation) = (Routed::NAMES, dense.activation);
    let experts = Routed { count, inner, names, activation, corrected: false, routing };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, p, h| {
            if dense_layers.contains(&i) || !(i + 1).is_multiple_of(every) {
                return dense.build(b, p, h);
            }
            experts.build(b, p, h)
        })
    })
}

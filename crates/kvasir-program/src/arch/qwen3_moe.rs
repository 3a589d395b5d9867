//! Qwen3 with experts in most layers.

use super::llama::layer;
use crate::{
    Role, Routing, Score,
    blocks::{Attention, FeedForward, Norms, common_window, decoder, named_experts},
    builder::Builder,
    error::Result,
    rope_config::RopeConfig,
};

pub(super) fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (bias, norms) = (c.flag_or("attention_bias", false)?, Norms::rms(c)?);
    let attention = Attention { bias, out_bias: bias, norms: Some(norms), ..Attention::read(c)? };
    let window = if c.flag_or("use_sliding_window", false)? { common_window(c)? } else { None };
    let (dense_layers, every) = (c.counts("mlp_only_layers")?, c.size_or("decoder_sparse_step", 1)?);
    let (count, inner) = (c.number("num_experts")?, c.size("moe_intermediate_size")?);
    let routing = Routing {
        score: Score::Softmax,
        top_k: c.size("num_experts_per_tok")?,
        correction: None,
        groups: None,
        renormalise: c.flag_or("norm_topk_prob", false)?.then_some(0.0),
        scale: 1.0,
    };
    let dense = FeedForward::read(c)?;
    let rope = RopeConfig::read(c)?;
    let rope = rope.rope(rope.dims(attention.head_dim, 1.0)?)?;
    let rope = b.rope(rope);
    decoder(b, 1.0, norms, |b, i, x| {
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, p, h| {
            if dense_layers.contains(&i) || !(i + 1).is_multiple_of(every) {
                return dense.build(b, p, h);
            }
            let gate = b.matrix(&format!("{p}gate"), count, b.program.hidden, false, Role::Router)?;
            let scores = b.linear(h, gate)?;
            let routes = b.route(scores, routing)?;
            let names = ["gate_proj", "up_proj", "down_proj"];
            let p = format!("{p}experts.");
            let experts = named_experts(b, &p, count, inner, names, dense.activation, false)?;
            b.mixture(h, routes, experts)
        })
    })
}

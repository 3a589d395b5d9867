//! Mixtral: Mistral's attention, experts in every layer.

use super::llama::layer;
use crate::{
    Role, Routing, Score,
    blocks::{Attention, Norms, activation, common_window, decoder, named_experts},
    builder::Builder,
    error::Result,
    rope_config::RopeConfig,
};

pub(super) fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (attention, norms, window) = (Attention::read(c)?, Norms::rms(c)?, common_window(c)?);
    let (count, inner) = (c.number("num_local_experts")?, c.size("intermediate_size")?);
    let activation = activation(c)?;
    let routing = Routing {
        score: Score::Softmax,
        top_k: c.size("num_experts_per_tok")?,
        correction: None,
        groups: None,
        renormalise: Some(0.0),
        scale: 1.0,
    };
    let rope = RopeConfig::read(c)?;
    let rope = rope.rope(rope.dims(attention.head_dim, 1.0)?)?;
    let rope = b.rope(rope);
    decoder(b, 1.0, norms, |b, i, x| {
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, _, h| {
            let p = format!("model.layers.{i}.block_sparse_moe.");
            let gate = b.matrix(&format!("{p}gate"), count, b.program.hidden, false, Role::Router)?;
            let scores = b.linear(h, gate)?;
            let routes = b.route(scores, routing)?;
            let (p, names) = (format!("{p}experts."), ["w1", "w3", "w2"]);
            let experts = named_experts(b, &p, count, inner, names, activation, false)?;
            b.mixture(h, routes, experts)
        })
    })
}

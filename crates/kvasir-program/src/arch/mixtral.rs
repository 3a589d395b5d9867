//! Mixtral: Mistral's attention with a softmax top-k MoE in every layer.

use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::activation;
use crate::blocks::routed::{Routed, by_softmax};
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;

pub(crate) fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (attention, norms, window) = (Attention::read(c)?, Norms::rms(c)?, common_window(c)?);
    let (count, inner) = (c.number("num_local_experts")?, c.size("intermediate_size")?);
    let activation = activation(c)?;
    let routing = by_softmax(c.size("num_experts_per_tok")?, true);
    let experts = Routed { count, inner, names: ["w1", "w3", "w2"], activation, corrected: false, routing };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, _, h| {
            experts.build(b, &format!("model.layers.{i}.block_sparse_moe."), h)
        })
    })
}

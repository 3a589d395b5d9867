//! Llama (GQA, RMSNorm, SwiGLU), and Mistral, which adds a sliding window and drops the biases.
//! Also the common pre-norm decoder layer.

use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::ir::value::ValueId;

pub(crate) fn llama(b: &mut Builder<'_>) -> Result<()> {
    let bias = b.config.flag_or("attention_bias", false)?;
    let attention = Attention { bias, out_bias: bias, ..Attention::read(b.config)? };
    let bias = b.config.flag_or("mlp_bias", false)?;
    build(b, attention, FeedForward { bias, ..FeedForward::read(b.config)? }, None)
}

pub(crate) fn mistral(b: &mut Builder<'_>) -> Result<()> {
    let window = common_window(b.config)?;
    build(b, Attention::read(b.config)?, FeedForward::read(b.config)?, window)
}

fn build(b: &mut Builder<'_>, attention: Attention, ffn: FeedForward, window: Option<u32>) -> Result<()> {
    let norms = Norms::rms(b.config)?;
    let rope = attention.rope(b, RopeConfig::read(b.config)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, rope, window), |b, p, h| ffn.build(b, p, h))
    })
}

/// The common pre-norm layer: x + attention(norm(x)), then x + ffn(norm(x)). `ffn` is given the
/// prefix of the layer's `mlp` tensors.
pub(crate) fn layer<'a>(
    b: &mut Builder<'a>,
    i: usize,
    x: ValueId,
    norms: Norms,
    attention: impl FnOnce(&mut Builder<'a>, ValueId) -> Result<ValueId>,
    ffn: impl FnOnce(&mut Builder<'a>, &str, ValueId) -> Result<ValueId>,
) -> Result<ValueId> {
    let h = norms.row(b, x, &format!("model.layers.{i}.input_layernorm"))?;
    let h = attention(b, h)?;
    let x = b.add(x, h)?;
    let h = norms.row(b, x, &format!("model.layers.{i}.post_attention_layernorm"))?;
    let h = ffn(b, &format!("model.layers.{i}.mlp."), h)?;
    b.add(x, h)
}

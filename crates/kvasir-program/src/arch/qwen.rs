//! Qwen2 (biases on the Q, K and V projections) and Qwen3 (QK-norm: an RMSNorm over each query and
//! key head instead).

use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::qwen_windows;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;

pub(crate) fn qwen2(b: &mut Builder<'_>) -> Result<()> {
    let attention = Attention { bias: true, ..Attention::read(b.config)? };
    build(b, attention)
}

pub(crate) fn qwen3(b: &mut Builder<'_>) -> Result<()> {
    let bias = b.config.flag_or("attention_bias", false)?;
    let norms = Some(Norms::rms(b.config)?);
    build(b, Attention { bias, out_bias: bias, norms, ..Attention::read(b.config)? })
}

fn build(b: &mut Builder<'_>, attention: Attention) -> Result<()> {
    let (norms, ffn) = (Norms::rms(b.config)?, FeedForward::read(b.config)?);
    let windows = qwen_windows(b.config)?;
    let rope = attention.rope(b, RopeConfig::read(b.config)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let window = windows.get(i).copied().flatten();
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, rope, window), |b, p, h| ffn.build(b, p, h))
    })
}

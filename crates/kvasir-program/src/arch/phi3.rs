//! Phi-3: fused QKV and gate/up projections, partial rotary embedding, LongRoPE.

use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;

pub(crate) fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (norms, window) = (Norms::rms(c)?, common_window(c)?);
    let attention = Attention { fused: true, ..Attention::read(c)? };
    let ffn = FeedForward { fused: true, ..FeedForward::read(c)? };
    // Older Phi-3 configs say `yarn` but mean LongRoPE.
    let rope = RopeConfig::read(c)?.with_kind("yarn", "longrope");
    let rope = attention.rope(b, rope, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, rope, window), |b, p, h| ffn.build(b, p, h))
    })
}

//! Qwen2 (biases on the Q, K and V projections) and Qwen3 (QK-norm: an RMSNorm over each query and
//! key head instead; MTP layers as in DeepSeek-V3, if the checkpoint has any).

use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder, prediction};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::qwen_windows;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;

pub(crate) fn qwen2(b: &mut Builder<'_>) -> Result<()> {
    let attention = Attention { bias: true, ..Attention::read(b.config)? };
    Parts::new(b, attention)?.target(b)
}

pub(crate) fn qwen3(b: &mut Builder<'_>) -> Result<()> {
    Parts::qwen3(b)?.target(b)
}

pub(crate) fn qwen3_prediction(b: &mut Builder<'_>) -> Result<()> {
    let parts = Parts::qwen3(b)?;
    prediction(b, parts.norms, |b, i, x| parts.layer(b, i, x))
}

struct Parts {
    attention: Attention,
    ffn: FeedForward,
    norms: Norms,
    /// By layer; those beyond the list have none.
    windows: Vec<Option<u32>>,
    rope: RopeId,
}

impl Parts {
    fn qwen3(b: &mut Builder<'_>) -> Result<Self> {
        let bias = b.config.flag_or("attention_bias", false)?;
        let norms = Some(Norms::rms(b.config)?);
        Self::new(b, Attention { bias, out_bias: bias, norms, ..Attention::read(b.config)? })
    }

    fn new(b: &mut Builder<'_>, attention: Attention) -> Result<Self> {
        let (norms, ffn) = (Norms::rms(b.config)?, FeedForward::read(b.config)?);
        let windows = qwen_windows(b.config)?;
        let rope = attention.rope(b, RopeConfig::read(b.config)?, 1.0)?;
        Ok(Self { attention, ffn, norms, windows, rope })
    }

    fn layer(&self, b: &mut Builder<'_>, i: usize, x: ValueId) -> Result<ValueId> {
        let window = self.windows.get(i).copied().flatten();
        let attend = |b: &mut Builder<'_>, h| self.attention.build(b, i, h, self.rope, window);
        layer(b, i, x, self.norms, attend, |b, p, h| self.ffn.build(b, p, h))
    }

    fn target(&self, b: &mut Builder<'_>) -> Result<()> {
        decoder(b, 1.0, self.norms, |b, i, x| self.layer(b, i, x))
    }
}

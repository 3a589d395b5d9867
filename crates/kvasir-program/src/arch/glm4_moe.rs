//! GLM-4.5: GQA with partial rotary embedding, MoE and MTP layers as in DeepSeek-V3.

use super::llama::layer;
use crate::{
    RopeId, ValueId,
    blocks::{Attention, Grouped, Norms, decoder, prediction as predict},
    builder::Builder,
    error::Result,
    rope_config::RopeConfig,
};

struct Parts {
    attention: Attention,
    experts: Grouped,
    norms: Norms,
    rope: RopeId,
}

pub(super) fn target(b: &mut Builder<'_>) -> Result<()> {
    let parts = Parts::new(b)?;
    decoder(b, 1.0, parts.norms, |b, i, x| parts.layer(b, i, x))
}

pub(super) fn prediction(b: &mut Builder<'_>) -> Result<()> {
    let parts = Parts::new(b)?;
    predict(b, parts.norms, |b, i, x| parts.layer(b, i, x))
}

impl Parts {
    fn new(b: &mut Builder<'_>) -> Result<Self> {
        let (c, norms) = (b.config, Norms::rms(b.config)?);
        let attention = Attention {
            bias: c.flag_or("attention_bias", false)?,
            norms: c.flag_or("use_qk_norm", false)?.then_some(norms),
            ..Attention::read(c)?
        };
        let rope = attention.rope(b, RopeConfig::read(c)?, 0.5)?;
        Ok(Self { attention, experts: Grouped::read(c)?, norms, rope })
    }

    fn layer(&self, b: &mut Builder<'_>, i: usize, x: ValueId) -> Result<ValueId> {
        let attend = |b: &mut Builder<'_>, h| self.attention.build(b, i, h, self.rope, None);
        layer(b, i, x, self.norms, attend, |b, _, h| self.experts.build(b, i, h))
    }
}

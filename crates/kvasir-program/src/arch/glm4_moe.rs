//! GLM-4.5: GQA with partial rotary embedding, MoE and MTP layers as in DeepSeek-V3.

use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder, prediction as predict};
use crate::blocks::grouped::Grouped;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;

struct Parts {
    attention: Attention,
    experts: Grouped,
    norms: Norms,
    rope: RopeId,
}

pub(crate) fn target(b: &mut Builder<'_>) -> Result<()> {
    let parts = Parts::new(b)?;
    decoder(b, 1.0, parts.norms, |b, i, x| parts.layer(b, i, x))
}

pub(crate) fn prediction(b: &mut Builder<'_>) -> Result<()> {
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

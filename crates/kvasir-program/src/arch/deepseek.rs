//! DeepSeek-V3: MLA (multi-head latent attention), group-limited MoE with shared experts, MTP
//! layers. V3.2 adds the sparse-attention indexer (DSA).

use crate::arch::llama::layer;
use crate::blocks::decoder::{Norms, decoder, prediction};
use crate::blocks::grouped::Grouped;
use crate::blocks::latent::Latent;
use crate::builder::Builder;
use crate::error::Result;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;

pub(crate) fn v3(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?;
    Parts::new(b, latent)?.target(b)
}

pub(crate) fn v3_prediction(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?;
    Parts::new(b, latent)?.prediction(b)
}

pub(crate) fn v32(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?.sparse(b.config)?;
    Parts::new(b, latent)?.target(b)
}

pub(crate) fn v32_prediction(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?.sparse(b.config)?;
    Parts::new(b, latent)?.prediction(b)
}

struct Parts {
    latent: Latent,
    experts: Grouped,
    norms: Norms,
    rope: RopeId,
}

impl Parts {
    fn new(b: &mut Builder<'_>, latent: Latent) -> Result<Self> {
        let rope = latent.rope(b)?;
        Ok(Self { latent, experts: Grouped::read(b.config)?, norms: Norms::rms(b.config)?, rope })
    }

    fn layer(&self, b: &mut Builder<'_>, i: usize, x: ValueId) -> Result<ValueId> {
        let attend = |b: &mut Builder<'_>, h| self.latent.build(b, i, h, self.rope);
        layer(b, i, x, self.norms, attend, |b, _, h| self.experts.build(b, i, h))
    }

    fn target(&self, b: &mut Builder<'_>) -> Result<()> {
        decoder(b, 1.0, self.norms, |b, i, x| self.layer(b, i, x))
    }

    fn prediction(&self, b: &mut Builder<'_>) -> Result<()> {
        prediction(b, self.norms, |b, i, x| self.layer(b, i, x))
    }
}

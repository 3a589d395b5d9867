//! DeepSeek-V3: MLA (multi-head latent attention), group-limited MoE with shared experts, MTP
//! layers. V3.2 adds the sparse-attention indexer (DSA).

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::decoder::{Norms, decoder, prediction};
use crate::blocks::grouped::Grouped;
use crate::blocks::latent::Latent;
use crate::builder::Builder;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, GROUPED, SIGMOID_SCORES};
use crate::gguf::latent::{INDEXER, INDEXER_TENSORS, LATENT};
use crate::gguf::transform::SPLIT_LATENT;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;
use serde_json::{Map, Value as Json};

pub(crate) static DEEPSEEK_V3: Architecture = Architecture {
    classes: &[Class::text("DeepseekV3ForCausalLM", "deepseek_v3")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["deepseek2"],
        written: |_| "deepseek2",
        claims: |_| true,
        tensors: &[],
        transforms: &[SPLIT_LATENT],
        rules: &[EXPERTS, EXPERT_WIDTH, SIGMOID_SCORES, GROUPED, LATENT],
    },
    models: "DeepSeek-V3, R1",
    specifics: "MLA, grouped routing, shared experts, prediction layer",
    defaults,
    target: v3,
    prediction: Some(v3_prediction),
};

pub(crate) static DEEPSEEK_V32: Architecture = Architecture {
    classes: &[Class::text("DeepseekV32ForCausalLM", "deepseek_v32")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["deepseek32"],
        written: |_| "deepseek32",
        claims: |_| true,
        tensors: &[INDEXER_TENSORS],
        transforms: &[SPLIT_LATENT],
        rules: &[EXPERTS, EXPERT_WIDTH, SIGMOID_SCORES, GROUPED, LATENT, INDEXER],
    },
    models: "DeepSeek-V3.2",
    specifics: "the indexer of sparse attention",
    defaults,
    target: v32,
    prediction: Some(v32_prediction),
};

fn defaults(config: &mut Map<String, Json>) {
    fill(config, [("n_group", 8.into()), ("topk_group", 4.into()), ("routed_scaling_factor", 2.5.into())]);
    fill(config, [("norm_topk_prob", true.into()), ("num_nextn_predict_layers", 1.into())]);
}

pub(crate) fn v3(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?;
    Parts::new(b, latent)?.target(b)
}

pub(crate) fn v3_prediction(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?;
    Parts::new(b, latent)?.prediction(b)
}

fn v32(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?.with_indexer(b.config)?;
    Parts::new(b, latent)?.target(b)
}

fn v32_prediction(b: &mut Builder<'_>) -> Result<()> {
    let latent = Latent::read(b.config)?.with_indexer(b.config)?;
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
        let attend = |b: &mut Builder<'_>, h| self.latent.build(b, i, h, Some(self.rope));
        layer(b, i, x, self.norms, attend, |b, _, h| self.experts.build(b, i, h))
    }

    fn target(&self, b: &mut Builder<'_>) -> Result<()> {
        decoder(b, 1.0, self.norms, |b, i, x| self.layer(b, i, x))
    }

    fn prediction(&self, b: &mut Builder<'_>) -> Result<()> {
        prediction(b, self.norms, |b, i, x| self.layer(b, i, x))
    }
}

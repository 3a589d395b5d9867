//! GLM-4.5: GQA with partial rotary embedding, MoE and MTP layers as in DeepSeek-V3.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder, prediction as predict};
use crate::blocks::grouped::Grouped;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, GROUPED, SIGMOID_SCORES};
use crate::gguf::heads::{HEADS, QKV_BIAS};
use crate::gguf::rule::Rule;
use crate::gguf::tensor_name::TensorName::Stem;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;

pub(crate) static GLM4_MOE: Architecture = Architecture {
    classes: &[Class::text("Glm4MoeForCausalLM", "glm4_moe")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["glm4moe"],
        written: |_| "glm4moe",
        claims: |_| true,
        tensors: &[&[Stem("post_attention_norm", "post_attention_layernorm")]],
        transforms: &[],
        rules: &[
            HEADS,
            QKV_BIAS,
            EXPERTS,
            EXPERT_WIDTH,
            SIGMOID_SCORES,
            GROUPED,
            &[Rule::HasTensor { config: "use_qk_norm", tensor: "blk.0.attn_q_norm.weight" }],
        ],
    },
    models: "GLM-4.5 and similar",
    specifics: "partial rotary, prediction layer (MTP)",
    defaults: |config| {
        fill(config, [("rms_norm_eps", 1e-5.into()), ("num_nextn_predict_layers", 1.into())]);
        fill(config, [("partial_rotary_factor", 0.5.into()), ("norm_topk_prob", true.into())]);
    },
    target,
    prediction: Some(prediction),
};

struct Parts {
    attention: Attention,
    experts: Grouped,
    norms: Norms,
    rope: RopeId,
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let parts = Parts::new(b)?;
    decoder(b, 1.0, parts.norms, |b, i, x| parts.layer(b, i, x))
}

fn prediction(b: &mut Builder<'_>) -> Result<()> {
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

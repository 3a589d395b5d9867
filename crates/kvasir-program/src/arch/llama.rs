//! Llama: GQA, RMSNorm, SwiGLU. Also the common pre-norm decoder layer.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::{HEADS, QKV_BIAS};
use crate::gguf::rule::Rule;
use crate::gguf::transform::INTERLEAVED;
use crate::ir::value::ValueId;

pub(crate) static LLAMA: Architecture = Architecture {
    classes: &[Class::text("LlamaForCausalLM", "llama")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["llama"],
        written: |_| "llama",
        claims: |_| true,
        tensors: &[],
        transforms: &[INTERLEAVED],
        rules: &[HEADS, QKV_BIAS, &[Rule::HasTensor { config: "mlp_bias", tensor: "blk.0.ffn_gate.bias" }]],
    },
    models: "Llama 2 and 3 and derivatives",
    specifics: "`llama3` RoPE",
    defaults: |_| {},
    target,
    prediction: None,
};

fn target(b: &mut Builder<'_>) -> Result<()> {
    let bias = b.config.flag_or("attention_bias", false)?;
    let attention = Attention { bias, out_bias: bias, ..Attention::read(b.config)? };
    let bias = b.config.flag_or("mlp_bias", false)?;
    let ffn = FeedForward { bias, ..FeedForward::read(b.config)? };
    let norms = Norms::rms(b.config)?;
    let rope = attention.rope(b, RopeConfig::read(b.config)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, rope, None), |b, p, h| ffn.build(b, p, h))
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

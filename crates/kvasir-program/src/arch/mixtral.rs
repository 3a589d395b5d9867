//! Mixtral: Mistral's attention with a softmax top-k MoE in every layer.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::activation;
use crate::blocks::routed::{Routed, by_softmax};
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::EXPERTS;
use crate::gguf::heads::HEADS;
use crate::gguf::tensor_name::BLOCK_SPARSE;
use crate::gguf::transform::INTERLEAVED;

pub(crate) static MIXTRAL: Architecture = Architecture {
    classes: &[Class::text("MixtralForCausalLM", "mixtral")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["llama"],
        written: |_| "llama",
        claims: |file| file.value("expert_count").and_then(|count| count.as_u64()).unwrap_or(0) > 0,
        tensors: &[BLOCK_SPARSE],
        transforms: &[INTERLEAVED],
        rules: &[HEADS, EXPERTS],
    },
    models: "Mixtral",
    specifics: "MoE",
    defaults: |config| fill(config, [("rope_theta", 1e6.into()), ("rms_norm_eps", 1e-5.into())]),
    target,
    prediction: None,
};

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (attention, norms, window) = (Attention::read(c)?, Norms::rms(c)?, common_window(c)?);
    let (count, inner) = (c.number("num_local_experts")?, c.size("intermediate_size")?);
    let activation = activation(c)?;
    let routing = by_softmax(c.size("num_experts_per_tok")?, true);
    let experts =
        Routed { count, inner, names: Routed::MIXTRAL_NAMES, activation, correction: None, routing };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, _, h| {
            experts.build(b, &format!("model.layers.{i}.block_sparse_moe."), h)
        })
    })
}

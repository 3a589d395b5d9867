//! Qwen3 MoE: Qwen3's attention with a softmax top-k MoE in most layers.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::routed::{Routed, by_softmax};
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, read_dense_layers};
use crate::gguf::heads::{HEADS, QKV_BIAS};
use crate::gguf::rule::{Absent, Constant, Rule, write_nothing};

pub(crate) static QWEN3_MOE: Architecture = Architecture {
    classes: &[Class::text("Qwen3MoeForCausalLM", "qwen3_moe")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["qwen3moe"],
        written: |_| "qwen3moe",
        claims: |_| true,
        tensors: &[],
        transforms: &[],
        rules: &[
            HEADS,
            QKV_BIAS,
            EXPERTS,
            EXPERT_WIDTH,
            &[
                // Other converters drop the key; every published model of this family normalizes.
                Rule::flag("expert_weights_norm", "norm_topk_prob", Absent::Means(Constant::Flag(true))),
                Rule::Code { read: read_dense_layers, write: write_nothing },
            ],
        ],
    },
    models: "Qwen3-30B-A3B and similar",
    specifics: "MoE",
    defaults: |config| {
        let window = [("sliding_window", 4096.into()), ("max_window_layers", 28.into())];
        fill(config, window);
        fill(config, [("norm_topk_prob", false.into())]);
    },
    target,
    prediction: None,
};

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (bias, norms) = (c.flag_or("attention_bias", false)?, Norms::rms(c)?);
    let attention = Attention { bias, out_bias: bias, norms: Some(norms), ..Attention::read(c)? };
    let window = if c.flag_or("use_sliding_window", false)? { common_window(c)? } else { None };
    let (dense_layers, every) = (c.counts("mlp_only_layers")?, c.size_or("decoder_sparse_step", 1)?);
    let (count, inner) = (c.number("num_experts")?, c.size("moe_intermediate_size")?);
    let routing = by_softmax(c.size("num_experts_per_tok")?, c.flag_or("norm_topk_prob", false)?);
    let dense = FeedForward::read(c)?;
    let (names, activation) = (Routed::NAMES, dense.activation);
    let experts = Routed { count, inner, names, activation, correction: None, routing };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, p, h| {
            if dense_layers.contains(&i) || !(i + 1).is_multiple_of(every) {
                return dense.build(b, p, h);
            }
            experts.build(b, p, h)
        })
    })
}

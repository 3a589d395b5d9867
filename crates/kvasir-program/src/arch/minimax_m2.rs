//! MiniMax-M2: QK-norm over all heads together, partial rotary embedding, and a MoE with sigmoid
//! scores and a correction bias in every layer.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::activation;
use crate::blocks::routed::Routed;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERTS, SIGMOID_SCORES};
use crate::gguf::heads::HEADS;
use crate::gguf::rule::{Absent, Rule};
use crate::gguf::tensor_name::BLOCK_SPARSE;
use crate::gguf::tensor_name::TensorName::Irregular;
use crate::ir::moe::{Routing, Score};
use serde_json::{Map, Value as Json};

pub(crate) static MINIMAX_M2: Architecture = Architecture {
    classes: &[Class::text("MiniMaxM2ForCausalLM", "minimax_m2")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["minimax-m2"],
        written: |_| "minimax-m2",
        claims: |_| true,
        tensors: &[
            BLOCK_SPARSE,
            &[Irregular("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias")],
        ],
        transforms: &[],
        rules: &[
            HEADS,
            EXPERTS,
            SIGMOID_SCORES,
            &[Rule::count("expert_feed_forward_length", "intermediate_size", Absent::Omit)],
        ],
    },
    models: "MiniMax-M2",
    specifics: "norms over all heads, partial rotary, MoE with a correction bias",
    defaults,
    target,
    prediction: None,
};

/// The rotated part of a head is a number of elements here, a share elsewhere.
fn defaults(config: &mut Map<String, Json>) {
    fill(config, [("rope_theta", 5e6.into())]);
    let number = |key: &str| config.get(key).and_then(Json::as_f64);
    let width = number("head_dim").or_else(|| Some(number("hidden_size")? / number("num_attention_heads")?));
    if let (Some(rotated), Some(width)) = (number("rotary_dim"), width)
        && is_missing(config, "partial_rotary_factor")
        && width > 0.0
    {
        config.insert("partial_rotary_factor".to_owned(), (rotated / width).into());
    }
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    check_supported(c)?;
    let (norms, window) = (Norms::rms(c)?, common_window(c)?);
    let normed = c.flag_or("use_qk_norm", true)?.then_some(norms);
    let attention = Attention { norms: normed, wide_norms: true, ..Attention::read(c)? };
    let correction = c.flag_or("use_routing_bias", true)?.then_some("e_score_correction_bias");
    let routing = Routing {
        score: Score::Sigmoid,
        top_k: c.size("num_experts_per_tok")?,
        correction: None,
        groups: None,
        renormalize: Some(0.0),
        scale: 1.0,
        token_table: None,
        expert_scale: None,
    };
    let experts = Routed {
        count: c.number("num_local_experts")?,
        inner: c.size("intermediate_size")?,
        names: Routed::MIXTRAL_NAMES,
        activation: activation(c)?,
        correction,
        routing,
    };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, _, h| {
            experts.build(b, &format!("model.layers.{i}.block_sparse_moe."), h)
        })
    })
}

/// Refuses what the class can say and no published model does.
fn check_supported(c: Config<'_>) -> Result<()> {
    c.require_text("scoring_func", "sigmoid")?;
    c.require_text("qk_norm_type", "per_layer")?;
    if let Some(other) = c.counts("attn_type_list")?.into_iter().find(|kind| *kind != 1) {
        return Err(c.bad("attn_type_list", format!("has {other}: linear attention is not supported")));
    }
    match c.count("shared_intermediate_size")? {
        0 => Ok(()),
        width => Err(c.bad("shared_intermediate_size", format!("is {width}, only 0 is supported"))),
    }
}

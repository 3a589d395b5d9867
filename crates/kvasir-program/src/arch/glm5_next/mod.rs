//! GLM-5-next (GLM-5.3-Flash): Kimi Delta Attention (KDA) with bounded decays in most layers, MLA
//! without RoPE over selected key pools in the others, and hyper-connections between residual
//! streams.

pub(crate) mod metadata;

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::glm4_moe_lite::check_dense_layers;
use crate::arch::glm5_next::metadata::{
    HYPER_CONNECTION_TENSORS, HYPER_CONNECTIONS, KDA_AND_KEY_POOLS, KEY_POOL_TENSORS,
};
use crate::blocks::decoder::{Norms, multi_stream_decoder};
use crate::blocks::grouped::Grouped;
use crate::blocks::hyper_connection::HyperConnections;
use crate::blocks::kimi_delta::{KimiDelta, LINEAR_ATTN_CONFIG, kda_layers};
use crate::blocks::latent::Latent;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, GROUPED, SIGMOID_SCORES};
use crate::gguf::kimi_delta::KDA_TENSORS;
use crate::gguf::latent::{INDEXER, INDEXER_TENSORS, LATENT};
use crate::gguf::transform::{SPLIT_LATENT, StoredAs, Transform};
use crate::ir::activation::Activation;
use serde_json::{Map, Value as Json};

pub(crate) static GLM5_NEXT: Architecture = Architecture {
    classes: &[
        Class::text("Glm5NextForCausalLM", "glm5_next_text"),
        Class::multimodal("Glm5NextForConditionalGeneration", "glm5_next_text", &["visual."]),
    ],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["glm5-next"],
        written: |_| "glm5-next",
        claims: |_| true,
        tensors: &[KDA_TENSORS, INDEXER_TENSORS, KEY_POOL_TENSORS, HYPER_CONNECTION_TENSORS],
        transforms: &[
            SPLIT_LATENT,
            &[StoredAs { tensors: "self_attn.A_log", transform: Transform::DecayRate { column: false } }],
        ],
        rules: &[
            EXPERTS,
            EXPERT_WIDTH,
            SIGMOID_SCORES,
            GROUPED,
            LATENT,
            INDEXER,
            KDA_AND_KEY_POOLS,
            HYPER_CONNECTIONS,
        ],
    },
    models: "GLM-5.3-Flash (text)",
    specifics: "Kimi Delta Attention, MLA over selected pools of tokens, hyper-connections",
    defaults,
    target,
    prediction: None,
};

fn defaults(config: &mut Map<String, Json>) {
    let types = config.get("mlp_layer_types").and_then(Json::as_array);
    let dense = types.map_or(0, |all| all.iter().take_while(|kind| *kind == "dense").count());
    fill(config, [("first_k_dense_replace", dense.into()), ("norm_topk_prob", true.into())]);
    fill(config, [("rms_norm_eps", 1e-5.into()), ("tie_word_embeddings", false.into())]);
    fill(config, [("hc_mult", 4.into()), ("hc_sinkhorn_iters", 20.into()), ("hc_eps", 1e-6.into())]);
    if is_missing(config, "qk_rope_head_dim") {
        config.insert("qk_rope_head_dim".to_owned(), 0.into());
    }
    if let Some(Json::Object(linear)) = config.get_mut(LINEAR_ATTN_CONFIG) {
        linear.entry("gate_lower_bound").or_insert((-5.0).into());
    }
}

/// Whether each layer is KDA, from `layer_types` or else from the lists of `linear_attn_config`.
pub(crate) fn is_kda_by_layer(c: Config<'_>) -> Result<Vec<bool>> {
    let kinds = [("linear_attention", true), ("full_attention", false), ("indexed_attention", false)];
    match c.by_layer_kind("layer_types", c.number("num_hidden_layers")?, kinds)? {
        Some(listed) => Ok(listed),
        None => kda_layers(c),
    }
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    check_supported(c)?;
    check_dense_layers(c)?;
    let (norms, is_kda) = (Norms::rms(c)?, is_kda_by_layer(c)?);
    let (connections, delta) = (HyperConnections::read(c)?, KimiDelta::read(c)?);
    let latent = Latent::read(c)?.with_eps(norms.eps).with_pooled_indexer(c)?;
    let mut experts = Grouped::read(c)?;
    if let Some(limit) = c.opt_positive("swiglu_limit")? {
        experts = experts.with_activation(Activation::LimitedSwiglu { limit: limit as f32 });
    }
    permit_prediction_layers(b)?;
    let layer = |b: &mut Builder<'_>, i: usize, x| {
        let p = format!("model.layers.{i}.");
        let x = connections.wrap(b, &format!("{p}hc_attn"), x, |b, h| {
            let h = norms.row(b, h, &format!("{p}input_layernorm"))?;
            if is_kda[i] { delta.build(b, i, h) } else { latent.build(b, i, h, None) }
        })?;
        connections.wrap(b, &format!("{p}hc_ffn"), x, |b, h| {
            let h = norms.row(b, h, &format!("{p}post_attention_layernorm"))?;
            experts.build(b, i, h)
        })
    };
    multi_stream_decoder(b, connections.streams, layer, |b, x| {
        let x = b.mean_of_streams(x, connections.streams)?;
        norms.row(b, x, "model.norm")
    })
}

/// Lets the checkpoint contain tensors of prediction layers (MTP), which this program does not run.
fn permit_prediction_layers(b: &mut Builder<'_>) -> Result<()> {
    let (layers, extra) =
        (b.config.number("num_hidden_layers")?, b.config.count("num_nextn_predict_layers")?);
    let is_extra = |name: &str| {
        let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let layer = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
        layer.is_some_and(|layer| (layers..layers.saturating_add(extra)).contains(&layer))
    };
    b.ignore_tensors(is_extra);
    Ok(())
}

/// Rejects settings that the config permits but no published model uses.
fn check_supported(c: Config<'_>) -> Result<()> {
    for key in ["mhc", "mla_use_nope", "index_kpool_always_select_tail"] {
        c.require_true(key)?;
    }
    if let Some(linear) = c.object(LINEAR_ATTN_CONFIG)? {
        linear.require_true("safe_gate")?;
    }
    match c.count("qk_rope_head_dim")? {
        0 => {}
        width => return Err(c.bad("qk_rope_head_dim", format!("is {width}, only 0 is supported"))),
    }
    let types = c.texts("indexer_types")?.unwrap_or_default();
    match types.into_iter().find(|kind| *kind != "full") {
        None => Ok(()),
        Some(other) => Err(c.bad("indexer_types", format!("has {other:?}, only \"full\" is supported"))),
    }
}

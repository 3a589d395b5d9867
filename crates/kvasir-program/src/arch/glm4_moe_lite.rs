//! GLM-4.7-Flash: DeepSeek-V3 in small, with MLA and its routing, and without position scaling.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::deepseek::{v3, v3_prediction};
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, GROUPED, SIGMOID_SCORES};
use crate::gguf::latent::LATENT;
use crate::gguf::metadata::Metadata;
use crate::gguf::transform::SPLIT_LATENT;
use serde_json::{Map, Value as Json};

/// Rows of the published models' vocabulary.
const VOCABULARY: usize = 154_880;

pub(crate) static GLM4_MOE_LITE: Architecture = Architecture {
    classes: &[Class::text("Glm4MoeLiteForCausalLM", "glm4_moe_lite")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["deepseek2"],
        written: |_| "deepseek2",
        claims,
        tensors: &[],
        transforms: &[SPLIT_LATENT],
        rules: &[EXPERTS, EXPERT_WIDTH, SIGMOID_SCORES, GROUPED, LATENT],
    },
    models: "GLM-4.7-Flash",
    specifics: "MLA, MoE with shared experts, prediction layer",
    defaults,
    target,
    prediction: Some(prediction),
};

/// GGUF stores the family as DeepSeek-V2 with its own vocabulary, without a key that says so.
fn claims(file: &dyn Metadata) -> bool {
    file.shape("token_embd.weight").and_then(|shape| shape.first()) == Some(&VOCABULARY)
}

fn defaults(config: &mut Map<String, Json>) {
    let types = config.get("mlp_layer_types").and_then(Json::as_array);
    let dense = types.map_or(1, |all| all.iter().take_while(|kind| *kind == "dense").count());
    fill(config, [("first_k_dense_replace", dense.into())]);
    fill(config, [("rms_norm_eps", 1e-5.into()), ("routed_scaling_factor", 1.8.into())]);
    fill(config, [("norm_topk_prob", true.into()), ("num_nextn_predict_layers", 1.into())]);
}

/// Checks that `mlp_layer_types`, if present, is "dense" for the first `first_k_dense_replace`
/// layers and "sparse" for the others.
pub(crate) fn check_dense_layers(c: Config<'_>) -> Result<()> {
    let Some(types) = c.texts("mlp_layer_types")? else { return Ok(()) };
    let dense = c.count("first_k_dense_replace")?;
    match types.iter().enumerate().find(|(i, kind)| **kind != if *i < dense { "dense" } else { "sparse" }) {
        None => Ok(()),
        Some((i, kind)) => {
            let why = format!("has {kind:?} for layer {i}, with {dense} dense layers in front");
            Err(c.bad("mlp_layer_types", why))
        }
    }
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    check_dense_layers(b.config)?;
    v3(b)
}

fn prediction(b: &mut Builder<'_>) -> Result<()> {
    v3_prediction(b)
}

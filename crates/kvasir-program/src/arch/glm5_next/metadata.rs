//! Metadata and tensors of GLM-5-next in GGUF.

use crate::arch::glm5_next::is_kda_by_layer;
use crate::error::{ProgramError, Result};
use crate::gguf::kimi_delta::{read_delta, write_delta};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::TensorName::{self, Irregular};
use crate::gguf::writer::MetadataWriter;
use serde_json::Value as Json;

/// Tensors of the indexer's key pools.
pub(crate) const KEY_POOL_TENSORS: &[TensorName] = &[
    Irregular("indexer_compressor_gate.weight", "self_attn.indexer.index_kpool_compress_gate"),
    Irregular("indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape"),
];

pub(crate) const HYPER_CONNECTION_TENSORS: &[TensorName] = &[
    Irregular("hc_attn_fn.weight", "hc_attn_fn"),
    Irregular("hc_attn_base.weight", "hc_attn_base"),
    Irregular("hc_attn_scale.weight", "hc_attn_scale"),
    Irregular("hc_ffn_fn.weight", "hc_ffn_fn"),
    Irregular("hc_ffn_base.weight", "hc_ffn_base"),
    Irregular("hc_ffn_scale.weight", "hc_ffn_scale"),
];

/// Metadata of KDA layers and of the indexer's key pools.
pub(crate) const KDA_AND_KEY_POOLS: &[Rule] = &[
    Rule::Code { read: read_delta, write: |w| write_delta(w, &is_kda_by_layer(w.config)?) },
    Rule::count("attention.indexer.kpool", "index_kpool", Absent::Fail),
    Rule::flag(
        "attention.indexer.kpool_select_tail",
        "index_kpool_always_select_tail",
        Absent::Means(Constant::Flag(true)),
    ),
    Rule::Code { read: read_indexer_types, write: write_indexer_norm },
    Rule::Implied { config: "mla_use_nope", value: Constant::Flag(true) },
];

/// Metadata of hyper-connections, and of the limit of SwiGLU operands.
pub(crate) const HYPER_CONNECTIONS: &[Rule] = &[
    Rule::count("hyper_connection.count", "hc_mult", Absent::Fail),
    Rule::count("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters", Absent::Fail),
    Rule::float("hyper_connection.epsilon", "hc_eps", Absent::Fail),
    Rule::Code { read: read_swiglu_limit, write: write_swiglu_limit },
];

const INDEXER_TYPES: &str = "attention.indexer.types";

fn read_indexer_types(r: &mut ConfigReader<'_>) -> Result<()> {
    let types = r.file.value(INDEXER_TYPES);
    let types = types.as_ref().and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    if types.iter().any(|is_full| is_full.as_bool() == Some(false)) {
        return Err(ProgramError::metadata(
            INDEXER_TYPES,
            "shares selections between layers, which is not supported",
        ));
    }
    Ok(())
}

/// The LayerNorm of the indexer's keys has its own epsilon.
fn write_indexer_norm(w: &mut MetadataWriter<'_>) -> Result<()> {
    w.float("attention.layer_norm_epsilon", 1e-6);
    Ok(())
}

/// Keys of the limits of routed and shared experts; GGUF may list a limit per layer.
const SWIGLU_LIMITS: [&str; 2] = ["swiglu_clamp_exp", "swiglu_clamp_shexp"];

fn read_swiglu_limit(r: &mut ConfigReader<'_>) -> Result<()> {
    let [experts, shared] = SWIGLU_LIMITS.map(|key| r.number(key));
    if let (Some(experts), Some(shared)) = (&experts, &shared)
        && experts != shared
    {
        return Err(ProgramError::metadata(SWIGLU_LIMITS[1], "differs from the limit of routed experts"));
    }
    let limit = experts.filter(|limit| limit.as_f64().is_some_and(|limit| limit > 0.0));
    r.set("swiglu_limit", limit.unwrap_or(Json::Null));
    Ok(())
}

fn write_swiglu_limit(w: &mut MetadataWriter<'_>) -> Result<()> {
    if let Some(limit) = w.config.opt_float("swiglu_limit")? {
        SWIGLU_LIMITS.into_iter().for_each(|key| w.float(key, limit));
    }
    Ok(())
}

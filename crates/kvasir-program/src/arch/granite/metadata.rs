//! Metadata, tensor names and transforms of Granite 4.

use crate::arch::granite::recurrent_layers;
use crate::error::{ProgramError, Result};
use crate::gguf::heads::{read_hybrid_layers, write_hybrid_layers};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::TensorName::{self, Irregular, Stem};
use crate::gguf::transform::{StoredAs, Transform};
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::{Value as Json, json};

pub(crate) const MAMBA_TENSORS: &[TensorName] = &[
    Stem("ssm_in", "mamba.in_proj"),
    Stem("ssm_conv1d", "mamba.conv1d"),
    Irregular("ssm_dt.bias", "mamba.dt_bias"),
    Irregular("ssm_a", "mamba.A_log"),
    Irregular("ssm_d", "mamba.D"),
    Stem("ssm_norm", "mamba.norm"),
    Stem("ssm_out", "mamba.out_proj"),
    Stem("ffn_gate_inp", "block_sparse_moe.router.layer"),
];

pub(crate) const TRANSFORMS: &[StoredAs] = &[
    StoredAs {
        tensors: "self_attn.q_proj.",
        transform: Transform::InterleavePairs { heads: "num_attention_heads" },
    },
    StoredAs {
        tensors: "self_attn.k_proj.",
        transform: Transform::InterleavePairs { heads: "num_key_value_heads" },
    },
    StoredAs { tensors: "mamba.conv1d.weight", transform: Transform::SqueezeConvolution },
    StoredAs { tensors: "mamba.A_log", transform: Transform::DecayRate { column: true } },
    StoredAs { tensors: "mamba.D", transform: Transform::Column },
    StoredAs { tensors: "mamba.norm.weight", transform: Transform::NormGroups { groups: "mamba_n_groups" } },
    StoredAs { tensors: "shared_mlp.", transform: Transform::SplitGateUp },
    StoredAs { tensors: "block_sparse_moe.input_linear", transform: Transform::SplitGateUp },
    StoredAs { tensors: "block_sparse_moe.output_linear", transform: Transform::SplitGateUp },
];

/// The GGUF architecture of a config: `granite` or `granitemoe` if all layers have attention, else
/// `granitehybrid`.
pub(crate) fn written(config: &Json) -> &'static str {
    let types = config.get("layer_types").or_else(|| config.get("layers_block_type"));
    let all = types.and_then(Json::as_array);
    let is_attention_only = all.is_some_and(|all| all.iter().all(|kind| kind == "attention"));
    let experts = config.get("num_local_experts").and_then(Json::as_u64).unwrap_or(0);
    match (is_attention_only, experts) {
        (false, _) => "granitehybrid",
        (true, 0) => "granite",
        (true, _) => "granitemoe",
    }
}

pub(crate) const FACTORS: &[Rule] = &[
    Rule::float("attention.scale", "attention_multiplier", Absent::Fail),
    Rule::float("embedding_scale", "embedding_multiplier", Absent::Means(Constant::Float(1.0))),
    Rule::float("residual_scale", "residual_multiplier", Absent::Means(Constant::Float(1.0))),
    Rule::float("logit_scale", "logits_scaling", Absent::Means(Constant::Float(1.0))),
];

/// The width of the shared MLP is that of the feed-forward block in a model without experts.
pub(crate) const FEED_FORWARD: &[Rule] = &[
    Rule::count("expert_count", "num_local_experts", Absent::Means(Constant::Count(0))),
    Rule::count("expert_used_count", "num_experts_per_tok", Absent::Omit),
    Rule::Code { read: read_shared, write: write_shared },
];

/// The kind of each layer, and whether attention has RoPE.
pub(crate) const KINDS: &[Rule] = &[
    Rule::Code { read: read_kinds, write: write_kinds },
    Rule::Code { read: read_rope, write: write_rope },
    Rule::AnyBlockHas { config: "attention_bias", tensor: "attn_q.bias" },
];

pub(crate) const MAMBA: &[Rule] = &[
    Rule::count("ssm.conv_kernel", "mamba_d_conv", Absent::Omit),
    Rule::count("ssm.state_size", "mamba_d_state", Absent::Omit),
    Rule::count("ssm.group_count", "mamba_n_groups", Absent::Omit),
    Rule::count("ssm.time_step_rank", "mamba_n_heads", Absent::Omit),
    Rule::Code { read: read_expansion, write: write_expansion },
    Rule::AnyBlockHas { config: "mamba_conv_bias", tensor: "ssm_conv1d.bias" },
];

fn read_shared(r: &mut ConfigReader<'_>) -> Result<()> {
    let routed = r.uint("expert_count").unwrap_or(0) > 0;
    let key = if routed { "expert_shared_feed_forward_length" } else { "feed_forward_length" };
    let width = r.required_uint(key)?;
    r.set("shared_intermediate_size", width);
    Ok(())
}

fn write_shared(w: &mut MetadataWriter<'_>) -> Result<()> {
    let shared = w.config.size("shared_intermediate_size")?;
    let routed = w.config.count("num_local_experts")? > 0;
    w.count(if routed { "expert_shared_feed_forward_length" } else { "feed_forward_length" }, shared);
    Ok(())
}

fn read_kinds(r: &mut ConfigReader<'_>) -> Result<()> {
    read_hybrid_layers(r, "mamba", "attention")
}

fn write_kinds(w: &mut MetadataWriter<'_>) -> Result<()> {
    write_hybrid_layers(w, recurrent_layers)
}

/// `rope.scaling.finetuned = false` marks a hybrid model without RoPE.
fn read_rope(r: &mut ConfigReader<'_>) -> Result<()> {
    let has_rope = r.flag("rope.scaling.finetuned").unwrap_or(true);
    r.set("position_embedding_type", if has_rope { "rope" } else { "nope" });
    Ok(())
}

fn write_rope(w: &mut MetadataWriter<'_>) -> Result<()> {
    let has_rope = w.config.text("position_embedding_type")? == Some("rope");
    if !has_rope {
        w.set("rope.scaling.finetuned", MetadataValue::Flag(false));
    }
    Ok(())
}

fn read_expansion(r: &mut ConfigReader<'_>) -> Result<()> {
    let Some(inner) = r.uint("ssm.inner_size") else { return Ok(()) };
    let hidden = r.required_uint("embedding_length")?;
    if hidden == 0 || !inner.is_multiple_of(hidden) {
        let why = format!("is {inner}, not a multiple of {hidden}");
        return Err(ProgramError::metadata("ssm.inner_size", why));
    }
    r.set("mamba_expand", json!(inner / hidden));
    Ok(())
}

fn write_expansion(w: &mut MetadataWriter<'_>) -> Result<()> {
    let inner = w.config.size("mamba_expand")? * w.config.size("hidden_size")?;
    w.count("ssm.inner_size", inner);
    Ok(())
}

//! Metadata and tensors of Gated DeltaNet layers, and the config defaults of the family.

use crate::arch::config_defaults::fill;
use crate::arch::qwen3_5::layers::recurrent_layers;
use crate::error::Result;
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule};
use crate::gguf::tensor_name::TensorName::{self, Irregular, Stem};
use crate::gguf::transform::{HeadLocation, StoredAs, Transform};
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::{Map, Value as Json};

/// Tensors of Qwen3.5 and Qwen3-Next that Qwen4-Exp does not have.
pub(crate) const QWEN3_5_TENSORS: &[TensorName] =
    &[Stem("post_attention_norm", "post_attention_layernorm"), Stem("ssm_ba", "linear_attn.in_proj_ba")];

pub(crate) const DELTA_TENSORS: &[TensorName] = &[
    Stem("attn_qkv", "linear_attn.in_proj_qkv"),
    Stem("attn_gate", "linear_attn.in_proj_z"),
    Stem("ssm_alpha", "linear_attn.in_proj_a"),
    Stem("ssm_beta", "linear_attn.in_proj_b"),
    Stem("ssm_conv1d", "linear_attn.conv1d"),
    Irregular("ssm_dt.bias", "linear_attn.dt_bias"),
    Irregular("ssm_a", "linear_attn.A_log"),
    Stem("ssm_norm", "linear_attn.norm"),
    Stem("ssm_out", "linear_attn.out_proj"),
    Stem("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    Stem("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    Stem("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    Stem("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// Transforms of Qwen3.5. Value heads are tiled over key heads: head `j * key_heads + key` instead
/// of `key * ratio + j`.
pub(crate) const TILED_TRANSFORMS: &[StoredAs] = &[
    StoredAs {
        tensors: "linear_attn.in_proj_qkv.",
        transform: Transform::TileHeads(HeadLocation::RowsAfterKeys),
    },
    StoredAs { tensors: "linear_attn.in_proj_z.", transform: Transform::TileHeads(HeadLocation::Rows) },
    StoredAs { tensors: "linear_attn.in_proj_a.", transform: Transform::TileHeads(HeadLocation::Rows) },
    StoredAs { tensors: "linear_attn.in_proj_b.", transform: Transform::TileHeads(HeadLocation::Rows) },
    StoredAs { tensors: "linear_attn.conv1d.", transform: Transform::TileHeads(HeadLocation::RowsAfterKeys) },
    StoredAs { tensors: "linear_attn.dt_bias", transform: Transform::TileHeads(HeadLocation::Rows) },
    StoredAs { tensors: "linear_attn.A_log", transform: Transform::TileHeads(HeadLocation::DecayRates) },
    StoredAs { tensors: "linear_attn.out_proj.", transform: Transform::TileHeads(HeadLocation::Columns) },
    // Unlike the other norms, that of recurrent layers has no offset of one.
    StoredAs { tensors: "linear_attn.norm.", transform: Transform::Identity },
    StoredAs { tensors: "norm.weight", transform: Transform::PlusOne },
    StoredAs { tensors: "mlp.experts.gate_up_proj", transform: Transform::SplitGateUp },
    StoredAs { tensors: "mlp.experts.down_proj", transform: Transform::SplitGateUp },
];

/// Transforms of Qwen3-Next: projections ordered by key head are split; the order of value heads is
/// kept.
pub(crate) const KEY_HEAD_TRANSFORMS: &[StoredAs] = &[
    StoredAs { tensors: "linear_attn.in_proj_qkvz.", transform: Transform::SplitKeyHeads },
    StoredAs { tensors: "linear_attn.conv1d.", transform: Transform::SqueezeConvolution },
    StoredAs { tensors: "linear_attn.A_log", transform: Transform::DecayRate { column: false } },
    StoredAs { tensors: "linear_attn.norm.", transform: Transform::Identity },
    StoredAs { tensors: "norm.weight", transform: Transform::PlusOne },
    StoredAs { tensors: "mlp.experts.gate_up_proj", transform: Transform::SplitGateUp },
    StoredAs { tensors: "mlp.experts.down_proj", transform: Transform::SplitGateUp },
];

pub(crate) const SHARED_EXPERT: &[Rule] =
    &[Rule::count("expert_shared_feed_forward_length", "shared_expert_intermediate_size", Absent::Omit)];

pub(crate) const DELTA: &[Rule] = &[
    Rule::count("ssm.conv_kernel", "linear_conv_kernel_dim", Absent::Fail),
    Rule::count("ssm.state_size", "linear_key_head_dim", Absent::Fail),
    Rule::count("ssm.group_count", "linear_num_key_heads", Absent::Fail),
    Rule::count("ssm.time_step_rank", "linear_num_value_heads", Absent::Fail),
    Rule::Code { read: read_sizes, write: write_sizes },
];

/// Reads the width of a value head, from the width of all value heads, and the kind of each layer.
fn read_sizes(r: &mut ConfigReader<'_>) -> Result<()> {
    let (inner, heads) = (r.required_uint("ssm.inner_size")?, r.required_uint("ssm.time_step_rank")?);
    r.set("linear_value_head_dim", inner.checked_div(heads).unwrap_or(0));
    let listed = r.file.value("attention.recurrent_layers");
    let listed = listed.as_ref().and_then(Json::as_array).cloned().unwrap_or_default();
    let interval = r.uint("full_attention_interval").filter(|interval| *interval > 0).unwrap_or(4);
    let is_recurrent = |n: u64| match listed.get(n as usize) {
        Some(flag) => flag.as_bool().unwrap_or(false),
        None => !(n + 1).is_multiple_of(interval),
    };
    let kind = |n| if is_recurrent(n) { "linear_attention" } else { "full_attention" };
    r.set("layer_types", (0..r.layers()).map(kind).collect::<Vec<_>>());
    Ok(())
}

fn write_sizes(w: &mut MetadataWriter<'_>) -> Result<()> {
    let (heads, dim) = (w.config.size("linear_num_value_heads")?, w.config.size("linear_value_head_dim")?);
    w.count("ssm.inner_size", heads * dim);
    let mut flags = recurrent_layers(w.config)?;
    let has_prediction = (w.has_tensor)(&format!("model.layers.{}.eh_proj.weight", flags.len()));
    if has_prediction {
        flags.push(false);
    }
    w.set("attention.recurrent_layers", MetadataValue::Flags(flags));
    w.copy_count("full_attention_interval", "full_attention_interval")?;
    let sections = w.rope_value("mrope_section").and_then(Json::as_array);
    let sections: Option<Vec<u32>> =
        sections.and_then(|all| all.iter().map(|n| n.as_u64().and_then(|n| u32::try_from(n).ok())).collect());
    if let Some(mut sections) = sections {
        sections.resize(4, 0);
        w.set("rope.dimension_sections", MetadataValue::Counts(sections));
    }
    Ok(())
}

pub(crate) fn defaults(config: &mut Map<String, Json>) {
    let values = [
        ("full_attention_interval", 4.into()),
        ("linear_conv_kernel_dim", 4.into()),
        ("linear_key_head_dim", 128.into()),
        ("linear_value_head_dim", 128.into()),
        ("linear_num_key_heads", 16.into()),
        ("linear_num_value_heads", 32.into()),
        ("head_dim", 256.into()),
        ("tie_word_embeddings", false.into()),
        ("partial_rotary_factor", 0.25.into()),
    ];
    fill(config, values);
}

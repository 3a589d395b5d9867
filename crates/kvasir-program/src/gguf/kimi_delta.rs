//! Metadata and tensors of Kimi Delta Attention (KDA) layers in a hybrid model.
//!
//! GGUF marks a KDA layer by 0 KV heads. KDA layers have the number of heads of the attention
//! layers.

use crate::blocks::kimi_delta::{LINEAR_ATTN_CONFIG, linear_attn_config};
use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::tensor_name::TensorName::{self, Irregular, Stem};
use crate::gguf::writer::MetadataWriter;
use serde_json::json;

pub(crate) const KDA_TENSORS: &[TensorName] = &[
    Stem("ssm_conv1d_q", "self_attn.q_conv1d"),
    Stem("ssm_conv1d_k", "self_attn.k_conv1d"),
    Stem("ssm_conv1d_v", "self_attn.v_conv1d"),
    Stem("ssm_f_a", "self_attn.f_a_proj"),
    Stem("ssm_f_b", "self_attn.f_b_proj"),
    Stem("ssm_g_a", "self_attn.g_a_proj"),
    Stem("ssm_g_b", "self_attn.g_b_proj"),
    Stem("ssm_beta", "self_attn.b_proj"),
    Irregular("ssm_a", "self_attn.A_log"),
    Irregular("ssm_dt.bias", "self_attn.dt_bias"),
    Stem("ssm_norm", "self_attn.o_norm"),
];

const KV_HEADS: &str = "attention.head_count_kv";
const LOWER_BOUND: &str = "kda.gate_lower_bound";

/// Reads `linear_attn_config`.
pub(crate) fn read_delta(r: &mut ConfigReader<'_>) -> Result<()> {
    let heads = r.uints(KV_HEADS).ok_or_else(|| ConfigReader::missing(KV_HEADS))?;
    let layers = heads.len().saturating_sub(r.prediction_layers() as usize);
    let layer_numbers = |is_kda: bool| -> Vec<usize> {
        let listed = (1..=layers).zip(&heads);
        listed.filter(|(_, heads)| (**heads == 0) == is_kda).map(|(number, _)| number).collect()
    };
    let linear = json!({
        "kda_layers": layer_numbers(true),
        "full_attn_layers": layer_numbers(false),
        "num_heads": r.required_uint("attention.head_count")?,
        "head_dim": r.required_uint("kda.head_dim")?,
        "short_conv_kernel_size": r.required_uint("ssm.conv_kernel")?,
        "gate_lower_bound": r.number(LOWER_BOUND),
    });
    r.set(LINEAR_ATTN_CONFIG, linear);
    Ok(())
}

/// Writes `linear_attn_config`. `is_kda` has an element per layer.
pub(crate) fn write_delta(w: &mut MetadataWriter<'_>, is_kda: &[bool]) -> Result<()> {
    let kv_heads: Vec<usize> = is_kda.iter().map(|is_kda| usize::from(!is_kda)).collect();
    w.counts(KV_HEADS, &kv_heads);
    let linear = linear_attn_config(w.config)?;
    let (heads, attention_heads) = (linear.size("num_heads")?, w.config.size("num_attention_heads")?);
    if heads != attention_heads {
        let why = format!("is {heads}; GGUF can only store num_attention_heads, {attention_heads}");
        return Err(ProgramError::config("linear_attn_config.num_heads", why));
    }
    w.count("kda.head_dim", linear.size("head_dim")?);
    w.count("ssm.conv_kernel", linear.size_or("short_conv_kernel_size", 4)?);
    let bound = linear.opt_float("gate_lower_bound")?;
    bound.into_iter().for_each(|bound| w.float(LOWER_BOUND, bound));
    Ok(())
}

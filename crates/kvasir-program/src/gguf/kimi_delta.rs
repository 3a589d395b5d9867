//! Metadata of Kimi Delta Attention (KDA) layers in a hybrid model.
//!
//! GGUF marks a KDA layer by 0 KV heads. KDA layers have the number of heads of the attention
//! layers.

use crate::blocks::kimi_delta::LINEAR_ATTN_CONFIG;
use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::writer::MetadataWriter;
use serde_json::json;

const KV_HEADS: &str = "attention.head_count_kv";
const LOWER_BOUND: &str = "kda.gate_lower_bound";

/// Reads `linear_attn_config`.
pub(crate) fn read_delta(r: &mut ConfigReader<'_>) -> Result<()> {
    let heads = r.uints(KV_HEADS).ok_or_else(|| ConfigReader::missing(KV_HEADS))?;
    let extra = r.uint("nextn_predict_layers").unwrap_or(0) as usize;
    let layers = heads.len().saturating_sub(extra);
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
    let linear =
        w.config.object(LINEAR_ATTN_CONFIG)?.ok_or_else(|| w.config.bad(LINEAR_ATTN_CONFIG, "is missing"))?;
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

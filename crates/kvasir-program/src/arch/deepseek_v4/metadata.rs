//! Metadata and tensors of DeepSeek-V4 in GGUF.

use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule};
use crate::gguf::tensor_name::TensorName::{self, Irregular, Outside, Stem};
use crate::gguf::writer::{MetadataValue, MetadataWriter};

pub(crate) const TENSORS: &[TensorName] = &[
    Outside("output_hc_fn.weight", "hc_head_fn"),
    Outside("output_hc_base.weight", "hc_head_base"),
    Outside("output_hc_scale.weight", "hc_head_scale"),
    Stem("attn_norm", "attn_norm"),
    Stem("ffn_norm", "ffn_norm"),
    Stem("attn_q_a", "attn.wq_a"),
    Stem("attn_q_a_norm", "attn.q_norm"),
    Stem("attn_q_b", "attn.wq_b"),
    Stem("attn_kv", "attn.wkv"),
    Stem("attn_kv_a_norm", "attn.kv_norm"),
    Stem("attn_output_a", "attn.wo_a"),
    Stem("attn_output_b", "attn.wo_b"),
    Irregular("attn_sinks.weight", "attn.attn_sink"),
    Stem("attn_compressor_kv", "attn.compressor.wkv"),
    Stem("attn_compressor_gate", "attn.compressor.wgate"),
    Irregular("attn_compressor_ape.weight", "attn.compressor.ape"),
    Stem("attn_compressor_norm", "attn.compressor.norm"),
    Stem("indexer.proj", "attn.indexer.weights_proj"),
    Stem("indexer.attn_q_b", "attn.indexer.wq_b"),
    Stem("indexer_compressor_kv", "attn.indexer.compressor.wkv"),
    Stem("indexer_compressor_gate", "attn.indexer.compressor.wgate"),
    Irregular("indexer_compressor_ape.weight", "attn.indexer.compressor.ape"),
    Stem("indexer_compressor_norm", "attn.indexer.compressor.norm"),
    Irregular("exp_probs_b.bias", "ffn.gate.bias"),
    Irregular("ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"),
    Stem("ffn_gate_inp", "ffn.gate"),
    Stem("ffn_gate_exps", "ffn.experts.{}.w1"),
    Stem("ffn_up_exps", "ffn.experts.{}.w3"),
    Stem("ffn_down_exps", "ffn.experts.{}.w2"),
    Stem("ffn_gate_shexp", "ffn.shared_experts.w1"),
    Stem("ffn_up_shexp", "ffn.shared_experts.w3"),
    Stem("ffn_down_shexp", "ffn.shared_experts.w2"),
];

pub(crate) const COMPRESSION: &[Rule] = &[
    Rule::count("attention.q_lora_rank", "q_lora_rank", Absent::Fail),
    Rule::count("attention.output_group_count", "o_groups", Absent::Fail),
    Rule::count("attention.output_lora_rank", "o_lora_rank", Absent::Fail),
    Rule::float("attention.compress_rope_freq_base", "compress_rope_theta", Absent::Fail),
    Rule::count("rope.dimension_count", "qk_rope_head_dim", Absent::Fail),
    Rule::count("hash_layer_count", "num_hash_layers", Absent::Fail),
    Rule::Code { read: read_ratios, write: write_ratios },
    Rule::Code { read: read_scores, write: write_scores },
];

const RATIOS: &str = "attention.compress_ratios";

fn read_ratios(r: &mut ConfigReader<'_>) -> Result<()> {
    let mut ratios = r.uints(RATIOS).ok_or_else(|| ConfigReader::missing(RATIOS))?;
    ratios.truncate(r.layers() as usize);
    r.set("compress_ratios", ratios);
    Ok(())
}

fn write_ratios(w: &mut MetadataWriter<'_>) -> Result<()> {
    let saturate = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let ratios = w.config.counts("compress_ratios")?.into_iter().map(saturate).collect();
    w.set(RATIOS, MetadataValue::Counts(ratios));
    let streams = w.config.size("hc_mult")?;
    w.count("embedding_length_out", w.config.size("hidden_size")?.saturating_mul(streams));
    Ok(())
}

/// Value of `expert_gating_func` for sqrt(softplus(x)).
const SQRT_SOFTPLUS: u32 = 4;

fn read_scores(r: &mut ConfigReader<'_>) -> Result<()> {
    let key = "expert_gating_func";
    match r.uint(key) {
        None => {}
        Some(kind) if kind == u64::from(SQRT_SOFTPLUS) => {}
        Some(other) => {
            return Err(ProgramError::metadata(key, format!("is {other}, which is not supported")));
        }
    }
    r.set("scoring_func", "sqrtsoftplus");
    Ok(())
}

fn write_scores(w: &mut MetadataWriter<'_>) -> Result<()> {
    w.set("expert_gating_func", MetadataValue::Count(SQRT_SOFTPLUS));
    Ok(())
}

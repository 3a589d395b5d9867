//! Metadata of multi-head latent attention (MLA), and metadata and tensors of the sparse-attention
//! indexer.
//!
//! GGUF describes MLA in its absorbed form, with one K/V head, and its heads under keys of their
//! own (`…_mla`).

use crate::error::Result;
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::TensorName::{self, Stem};
use crate::gguf::writer::MetadataWriter;
use serde_json::Value as Json;

pub(crate) const LATENT: &[Rule] = &[
    Rule::count("attention.q_lora_rank", "q_lora_rank", Absent::Means(Constant::Null)),
    Rule::count("attention.kv_lora_rank", "kv_lora_rank", Absent::Fail),
    Rule::Code { read, write },
    Rule::Code { read: read_magnitude, write: write_magnitude },
];

/// The lightning indexer of DeepSeek-V3.2.
pub(crate) const INDEXER: &[Rule] = &[
    Rule::count("attention.indexer.head_count", "index_n_heads", Absent::Fail),
    Rule::count("attention.indexer.key_length", "index_head_dim", Absent::Fail),
    Rule::count("attention.indexer.top_k", "index_topk", Absent::Fail),
];

pub(crate) const INDEXER_TENSORS: &[TensorName] = &[
    Stem("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    Stem("indexer.attn_k", "self_attn.indexer.wk"),
    Stem("indexer.k_norm", "self_attn.indexer.k_norm"),
    Stem("indexer.proj", "self_attn.indexer.weights_proj"),
];

fn read(r: &mut ConfigReader<'_>) -> Result<()> {
    let rope_dim = r.required_uint("rope.dimension_count")?;
    let key = r.uint("attention.key_length_mla").or_else(|| r.uint("attention.key_length"));
    let value = r.number("attention.value_length_mla").or_else(|| r.number("attention.value_length"));
    let nope_dim = key.and_then(|key| key.checked_sub(rope_dim));
    r.set("qk_nope_head_dim", nope_dim.ok_or_else(|| ConfigReader::missing("attention.key_length_mla"))?);
    r.set("qk_rope_head_dim", rope_dim);
    r.set("v_head_dim", value.unwrap_or(Json::Null));
    let heads = r.number("attention.head_count");
    r.set("num_key_value_heads", heads.unwrap_or(Json::Null));
    Ok(())
}

fn write(w: &mut MetadataWriter<'_>) -> Result<()> {
    let (rank, value) = (w.config.size("kv_lora_rank")?, w.config.size("v_head_dim")?);
    let (nope_dim, rope_dim) = (w.config.size("qk_nope_head_dim")?, w.config.count("qk_rope_head_dim")?);
    w.count("attention.head_count_kv", 1);
    w.count("attention.key_length", rank + rope_dim);
    w.count("attention.value_length", rank);
    w.count("attention.key_length_mla", nope_dim + rope_dim);
    w.count("attention.value_length_mla", value);
    w.count("rope.dimension_count", rope_dim);
    Ok(())
}

/// GGUF stores `0.1 * mscale_all_dim`; `mscale` is equal in all published models.
fn read_magnitude(r: &mut ConfigReader<'_>) -> Result<()> {
    let stored = r.number("rope.scaling.yarn_log_multiplier").and_then(|stored| stored.as_f64());
    if let Some(stored) = stored.filter(|_| r.config.contains_key("rope_scaling")) {
        let all = (stored * 10.0 * 1e6).round() / 1e6;
        r.set_scaling("mscale", all);
        r.set_scaling("mscale_all_dim", all);
    }
    Ok(())
}

fn write_magnitude(w: &mut MetadataWriter<'_>) -> Result<()> {
    let all = w.rope_float("mscale_all_dim");
    all.into_iter().for_each(|all| w.float("rope.scaling.yarn_log_multiplier", 0.1 * all));
    Ok(())
}

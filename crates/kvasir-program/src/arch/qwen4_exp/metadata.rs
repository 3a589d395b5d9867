//! Metadata and tensors of Qwen4-Exp in GGUF.

use crate::arch::qwen3_5::layers::recurrent_layers;
use crate::error::Result;
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::TensorName::{self, Outside, Stem};
use crate::gguf::transform::{StoredAs, Transform};
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::Value as Json;

/// Tensors of the residual streams, the indexer and the n-gram embeddings.
pub(crate) const TENSORS: &[TensorName] = &[
    Stem("hc_attn_norm", "attn_hyper_connection.hc_norm"),
    Stem("hc_attn_down", "attn_hyper_connection.input_mix_weight_down"),
    Stem("hc_attn_up", "attn_hyper_connection.input_mix_weight_up"),
    Stem("hc_attn_inject", "attn_hyper_connection.block_inject_weight"),
    Stem("hc_ffn_norm", "mlp_hyper_connection.hc_norm"),
    Stem("hc_ffn_down", "mlp_hyper_connection.input_mix_weight_down"),
    Stem("hc_ffn_up", "mlp_hyper_connection.input_mix_weight_up"),
    Stem("hc_ffn_inject", "mlp_hyper_connection.block_inject_weight"),
    Outside("output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight"),
    Outside("output_hc_down.weight", "model.hyper_connection_mixer.input_mix_weight_down.weight"),
    Outside("output_hc_up.weight", "model.hyper_connection_mixer.input_mix_weight_up.weight"),
    Stem("indexer.q_proj", "self_attn.indexer.q_proj"),
    Stem("indexer.k_proj", "self_attn.indexer.k_proj"),
    Stem("indexer.q_norm", "self_attn.indexer.q_layernorm"),
    Stem("indexer.k_norm", "self_attn.indexer.k_layernorm"),
    Stem("ple_key", "ple.key_proj"),
    Stem("ple_value", "ple.value_proj"),
    Stem("ple_norm_key", "ple.norm_key"),
    Stem("ple_norm_query", "ple.norm_query"),
    Stem("ple_norm_conv", "ple.norm_conv"),
    Stem("ple_conv1d", "ple.conv1d"),
    Outside("per_layer_token_embd.weight", "model.ngram_embedding.weight"),
];

/// Transforms of the indexer and of the n-gram embeddings.
pub(crate) const TRANSFORMS: &[StoredAs] = &[
    StoredAs { tensors: "self_attn.indexer.index_qk_proj.", transform: Transform::SplitIndexer },
    StoredAs { tensors: "self_attn.indexer.q_layernorm.", transform: Transform::PlusOne },
    StoredAs { tensors: "self_attn.indexer.k_layernorm.", transform: Transform::PlusOne },
    StoredAs { tensors: "ple.ple_embedding.ngram_embedding.", transform: Transform::JoinParts },
    StoredAs { tensors: "ple.conv1d.", transform: Transform::SqueezeConvolution },
    StoredAs { tensors: "ple.norm_", transform: Transform::PlusOne },
];

pub(crate) const STREAMS: &[Rule] = &[
    Rule::count("hyper_connection.count", "hc_count", Absent::Fail),
    Rule::count("hyper_connection.low_rank", "hc_lowrank", Absent::Fail),
    Rule::Implied { config: "output_gate_type", value: Constant::Text("sigmoid") },
    Rule::Implied { config: "norm_topk_prob", value: Constant::Flag(true) },
];

pub(crate) const INDEXER: &[Rule] = &[
    Rule::count("attention.indexer.head_count", "indexer_n_heads", Absent::Fail),
    Rule::count("attention.indexer.key_length", "indexer_head_dim", Absent::Fail),
    Rule::count("attention.indexer.top_k", "indexer_budget", Absent::Fail),
    Rule::Code { read: read_ratio, write: write_ratio },
];

pub(crate) const NGRAMS: &[Rule] = &[Rule::Code { read: read_ngrams, write: write_ngrams }];

const RATIOS: &str = "attention.compress_ratios";

/// GGUF has the block size per layer, 0 for recurrent layers; the config has one for all.
fn read_ratio(r: &mut ConfigReader<'_>) -> Result<()> {
    let ratio = r.uints(RATIOS).and_then(|all| all.into_iter().find(|ratio| *ratio > 0));
    r.set("indexer_compress_ratio", ratio.ok_or_else(|| ConfigReader::missing(RATIOS))?);
    Ok(())
}

fn write_ratio(w: &mut MetadataWriter<'_>) -> Result<()> {
    let ratio = w.config.size("indexer_compress_ratio")?;
    let recurrent = recurrent_layers(w.config)?;
    let ratios: Vec<usize> =
        recurrent.iter().map(|is_recurrent| if *is_recurrent { 0 } else { ratio }).collect();
    w.counts(RATIOS, &ratios);
    Ok(())
}

/// Counts: GGUF key and config key.
const COUNTS: [(&str, &str); 4] = [
    ("ple.ngram_size", "ngram_size"),
    ("ple.heads_per_ngram", "heads_per_ngram"),
    ("ple.conv_kernel", "ple_conv_kernel_size"),
    ("ple.eos_token_id", "ple_eos_token_id"),
];

/// Lists of integers: GGUF key and config key.
const LISTS: [(&str, &str); 3] = [
    ("ple.layer_multipliers", "ple_layer_multipliers"),
    ("ple.head_offsets", "ple_head_offsets"),
    ("ple.head_vocab_sizes", "ple_head_vocab_sizes"),
];

fn read_ngrams(r: &mut ConfigReader<'_>) -> Result<()> {
    let layers = r.file.value("ple.layers");
    let layers = layers.as_ref().and_then(Json::as_array).cloned().unwrap_or_default();
    // GGUF counts layers from 0, the config from 1.
    let layer_ids: Vec<u64> = layers.iter().filter_map(Json::as_u64).map(|n| n.saturating_add(1)).collect();
    let has_ngrams = !layer_ids.is_empty();
    r.set("ple_layer_ids", layer_ids);
    if !has_ngrams {
        return Ok(());
    }
    for (key, config) in COUNTS {
        let count = r.required_uint(key)?;
        r.set(config, count);
    }
    for (key, config) in LISTS {
        let list = r.file.value(key).filter(Json::is_array);
        r.set(config, list.ok_or_else(|| ConfigReader::missing(key))?);
    }
    Ok(())
}

fn write_ngrams(w: &mut MetadataWriter<'_>) -> Result<()> {
    let layers = w.config.counts("ple_layer_ids")?;
    if layers.is_empty() {
        return Ok(());
    }
    let zero_based = |n: usize| u32::try_from(n.saturating_sub(1)).unwrap_or(u32::MAX);
    let layers = layers.into_iter().map(zero_based).collect();
    w.set("ple.layers", MetadataValue::Counts(layers));
    for (key, config) in COUNTS {
        w.copy_count(key, config)?;
    }
    for (key, config) in LISTS {
        let list = w.config.integers(config)?.into_iter().map(i64::cast_unsigned).collect();
        w.set(key, MetadataValue::Integers(list));
    }
    let (width, heads) = (
        w.config.size_or("ple_embed_dim", w.config.size("hidden_size")?)?,
        w.config.integers("ple_head_offsets")?.len(),
    );
    w.count("embedding_length_per_layer_input", width / heads.max(1));
    Ok(())
}

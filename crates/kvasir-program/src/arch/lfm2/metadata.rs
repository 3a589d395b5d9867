//! Metadata and tensor names of LFM2, and its alternative spellings of config keys.

use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::lfm2::layers::convolution_layers;
use crate::error::Result;
use crate::gguf::heads::{read_hybrid_layers, write_hybrid_layers};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule};
use crate::gguf::tensor_name::TensorName::{self, Irregular, Outside, Stem};
use crate::gguf::transform::{StoredAs, Transform};
use crate::gguf::writer::MetadataWriter;
use serde_json::{Map, Value as Json};

pub(crate) const TENSORS: &[TensorName] = &[
    // The final norm.
    Outside("token_embd_norm.weight", "model.embedding_norm.weight"),
    Stem("attn_norm", "operator_norm"),
    Stem("ffn_norm", "ffn_norm"),
    Stem("attn_output", "self_attn.out_proj"),
    Stem("attn_q_norm", "self_attn.q_layernorm"),
    Stem("attn_k_norm", "self_attn.k_layernorm"),
    Stem("shortconv.in_proj", "conv.in_proj"),
    Stem("shortconv.conv", "conv.conv"),
    Stem("shortconv.out_proj", "conv.out_proj"),
    Stem("ffn_gate", "feed_forward.w1"),
    Stem("ffn_up", "feed_forward.w3"),
    Stem("ffn_down", "feed_forward.w2"),
    Stem("ffn_gate_inp", "feed_forward.gate"),
    Stem("ffn_gate_exps", "feed_forward.experts.{}.w1"),
    Stem("ffn_up_exps", "feed_forward.experts.{}.w3"),
    Stem("ffn_down_exps", "feed_forward.experts.{}.w2"),
    Irregular("exp_probs_b.bias", "feed_forward.expert_bias"),
];

pub(crate) const TRANSFORMS: &[StoredAs] =
    &[StoredAs { tensors: "conv.conv.weight", transform: Transform::SqueezeConvolution }];

/// The kind of each layer: a layer with 0 KV heads is a convolution.
pub(crate) const KINDS: &[Rule] = &[
    Rule::Code { read: read_kinds, write: write_kinds },
    Rule::count("shortconv.l_cache", "conv_L_cache", Absent::Fail),
];

fn read_kinds(r: &mut ConfigReader<'_>) -> Result<()> {
    read_hybrid_layers(r, "conv", "full_attention")
}

fn write_kinds(w: &mut MetadataWriter<'_>) -> Result<()> {
    write_hybrid_layers(w, convolution_layers)
}

/// Fills in the RMSNorm epsilon, from either of its older keys, whether the LM head is tied, and
/// the RoPE base.
pub(crate) fn common_defaults(config: &mut Map<String, Json>) {
    let first = |keys: &[&str]| keys.iter().find_map(|key| config.get(*key)).cloned();
    let (eps, tied) = (first(&["norm_eps", "block_norm_eps"]), first(&["tie_embedding"]));
    if is_missing(config, "rms_norm_eps") {
        config.insert("rms_norm_eps".to_owned(), eps.unwrap_or_else(|| 1e-5.into()));
    }
    if is_missing(config, "tie_word_embeddings") {
        config.insert("tie_word_embeddings".to_owned(), tied.unwrap_or_else(|| true.into()));
    }
    fill(config, [("rope_theta", 1e6.into())]);
}

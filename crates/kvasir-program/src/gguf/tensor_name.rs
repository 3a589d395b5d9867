//! [`TensorName`]: one tensor under its GGUF and its Hugging Face name.

/// A tensor's names in both formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorName {
    /// A layer's tensor: `blk.N.GGUF.SUFFIX` and `model.layers.N.HF.SUFFIX`, with `weight` or `bias`.
    ///
    /// `{}` in the Hugging Face name stands for the expert number: GGUF stacks a layer's experts in
    /// one tensor, along the slowest dimension.
    Stem(&'static str, &'static str),
    /// A layer's tensor whose suffix differs: `blk.N.GGUF` and `model.layers.N.HF`.
    Irregular(&'static str, &'static str),
    /// A tensor outside of layers, under its complete names.
    Outside(&'static str, &'static str),
    /// A GGUF tensor whose values are part of the config.
    InConfig(&'static str),
}

use TensorName::{InConfig, Irregular, Outside, Stem};

/// Names common to all architectures; those of an architecture hide them.
pub const COMMON_TENSORS: &[TensorName] = &[
    Outside("token_embd.weight", "model.embed_tokens.weight"),
    Outside("output_norm.weight", "model.norm.weight"),
    Outside("output.weight", "lm_head.weight"),
    InConfig("rope_freqs.weight"),
    InConfig("rope_factors_long.weight"),
    InConfig("rope_factors_short.weight"),
    Stem("attn_norm", "input_layernorm"),
    Stem("attn_q", "self_attn.q_proj"),
    Stem("attn_k", "self_attn.k_proj"),
    Stem("attn_v", "self_attn.v_proj"),
    Stem("attn_qkv", "self_attn.qkv_proj"),
    Stem("attn_output", "self_attn.o_proj"),
    Stem("attn_q_norm", "self_attn.q_norm"),
    Stem("attn_k_norm", "self_attn.k_norm"),
    Stem("ffn_norm", "post_attention_layernorm"),
    Stem("ffn_gate", "mlp.gate_proj"),
    Stem("ffn_up", "mlp.up_proj"),
    Stem("ffn_down", "mlp.down_proj"),
    Stem("ffn_gate_inp", "mlp.gate"),
    Stem("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    Stem("ffn_up_exps", "mlp.experts.{}.up_proj"),
    Stem("ffn_down_exps", "mlp.experts.{}.down_proj"),
    Stem("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    Stem("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    Stem("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    Irregular("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    Stem("attn_q_a", "self_attn.q_a_proj"),
    Stem("attn_q_a_norm", "self_attn.q_a_layernorm"),
    Stem("attn_q_b", "self_attn.q_b_proj"),
    Stem("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    Stem("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    Stem("attn_kv_b", "self_attn.kv_b_proj"),
    Stem("attn_k_b", "self_attn.k_b_proj"),
    Stem("attn_v_b", "self_attn.v_b_proj"),
    Stem("nextn.eh_proj", "eh_proj"),
    Stem("nextn.enorm", "enorm"),
    Stem("nextn.hnorm", "hnorm"),
    Stem("nextn.embed_tokens", "embed_tokens"),
    Stem("nextn.shared_head_head", "shared_head.head"),
    Stem("nextn.shared_head_norm", "shared_head.norm"),
];

/// Experts under the names of Mixtral.
pub(crate) const BLOCK_SPARSE: &[TensorName] = &[
    Stem("ffn_gate_inp", "block_sparse_moe.gate"),
    Stem("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
    Stem("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
    Stem("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
];

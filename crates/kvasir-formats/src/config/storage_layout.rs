//! Storage conventions of a checkpoint that the model builder must know to read its weights.

/// Storage conventions beyond names and shapes.
///
/// All unset for Hugging Face checkpoints. GGUF converters change some tensors; names are mapped
/// back by this crate, tensor bytes are not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageLayout {
    /// The checkpoint is a GGUF file.
    pub gguf: bool,
    /// Rows of each head of `q_proj` and `k_proj` are permuted for interleaved RoPE: pairs are (2i,
    /// 2i+1) instead of (i, i + half). GGUF files of the `llama` family (Llama, Mistral, Mixtral).
    pub interleaved_qk: bool,
    /// RMSNorm weights already contain 1 + w. GGUF files of the `gemma` family.
    pub norm_plus_one: bool,
    /// Multi-head latent attention (MLA) stores `kv_b_proj` split by head:
    /// `self_attn.k_b_proj.weight` [heads, kv_lora, qk_nope] (transposed) and
    /// `self_attn.v_b_proj.weight` [heads, v_head, kv_lora].
    pub split_kv_b: bool,
    /// gpt-oss experts are stored as `mlp.experts.N.{gate,up,down}_proj.{weight,bias}`, [out, in]
    /// each, not as an interleaved `gate_up_proj`.
    pub split_gate_up: bool,
    /// RoPE frequency divisors, as in `rope_freqs.weight` (Llama 3); also in the config as long and
    /// short factors.
    pub rope_divisors: bool,
}

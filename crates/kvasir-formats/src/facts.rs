/// What a program must know about how this checkpoint keeps its weights, beyond names and shapes.
///
/// Files in the Hugging Face layout have none of these set. GGUF files are written by converters that change some
/// tensors; the names are mapped back here, the bytes are not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Came from a GGUF file.
    pub gguf: bool,
    /// The rows of each head of `q_proj` and `k_proj` are permuted so that rotary pairs are (2i, 2i+1) and not
    /// (i, i + half): GGUF files of the `llama` family (Llama, Mistral, Mixtral).
    pub interleaved_qk: bool,
    /// Norm weights already hold 1 + w: GGUF files of the `gemma` family.
    pub norm_plus_one: bool,
    /// Latent attention comes as `kv_b_proj` split by head: `self_attn.k_b_proj.weight` [heads, kv_lora, qk_nope]
    /// (transposed) and `self_attn.v_b_proj.weight` [heads, v_head, kv_lora].
    pub split_kv_b: bool,
    /// gpt-oss experts come as `mlp.experts.N.{gate,up,down}_proj.{weight,bias}`, [out, in] each, and not as the
    /// interleaved `gate_up_proj`.
    pub split_gate_up: bool,
    /// Divisors of the rotary frequencies as in `rope_freqs.weight` (Llama 3); also in the config as long and short factors.
    pub rope_divisors: bool,
}

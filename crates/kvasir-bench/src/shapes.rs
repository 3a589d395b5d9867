//! Configs of well-known model shapes, for benchmarks with random weights and no checkpoint.

use serde_json::{Value, json};

/// Shape names accepted by `--shape`.
pub(crate) const SHAPES: [&str; 6] =
    ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "llama-3.2-1b", "llama-3.2-3b", "qwen3-30b-a3b"];

/// The Hugging Face config of a known shape, or `None`.
pub(crate) fn shape(name: &str) -> Option<Value> {
    let qwen3 = |layers: u32, hidden: u32, ffn: u32, heads: u32| {
        json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": layers, "hidden_size": hidden,
            "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151_936, "max_position_embeddings": 40_960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false})
    };
    let llama = |layers: u32, hidden: u32, heads: u32, head_dim: u32| {
        json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
            "intermediate_size": 8192, "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": head_dim,
            "vocab_size": 128_256, "max_position_embeddings": 131_072, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}})
    };
    Some(match name {
        "qwen3-0.6b" => qwen3(28, 1024, 3072, 16),
        "qwen3-1.7b" => qwen3(28, 2048, 6144, 16),
        "qwen3-4b" => qwen3(36, 2560, 9728, 32),
        "llama-3.2-1b" => llama(16, 2048, 32, 64),
        "llama-3.2-3b" => llama(28, 3072, 24, 128),
        "qwen3-30b-a3b" => {
            json!({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 48,
            "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
            "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151_936,
            "max_position_embeddings": 40_960, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
            "hidden_act": "silu", "attention_bias": false})
        }
        _ => return None,
    })
}

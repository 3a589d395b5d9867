//! Configs of well-known model shapes, for benchmarks with random weights and no checkpoint.

use serde_json::{Value, json};

/// Shape names accepted by `--shape`.
pub const SHAPES: [&str; 14] = [
    "smollm2-135m",
    "gemma-3-270m",
    "gemma-3-1b",
    "gemma-4-e2b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3.5-0.8b",
    "qwen3.5-0.8b-attention",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
];

/// The Hugging Face config of a known shape, or `None`.
pub fn shape(name: &str) -> Option<Value> {
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
    let gemma3 = |layers: u32, hidden: u32, ffn: u32| {
        json!({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": layers, "hidden_size": hidden,
            "intermediate_size": ffn, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "query_pre_attn_scalar": 256, "vocab_size": 262_144, "max_position_embeddings": 32_768, "sliding_window": 512,
            "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false})
    };
    Some(match name {
        "smollm2-135m" => {
            json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576,
            "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
            "vocab_size": 49_152, "max_position_embeddings": 8192, "rope_theta": 1e5, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false})
        }
        "gemma-3-270m" => gemma3(18, 640, 2048),
        "gemma-3-1b" => gemma3(26, 1152, 6912),
        "gemma-4-e2b" => {
            let kind = |n: u32| if n.is_multiple_of(5) { "full_attention" } else { "sliding_attention" };
            json!({"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "num_hidden_layers": 35,
            "hidden_size": 1536, "intermediate_size": 6144, "num_attention_heads": 8, "num_key_value_heads": 1,
            "head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144,
            "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
            "max_position_embeddings": 131_072, "sliding_window": 512, "rms_norm_eps": 1e-6,
            "final_logit_softcapping": 30.0, "layer_types": (1..=35).map(kind).collect::<Vec<_>>(),
            "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false})
        }
        "qwen2.5-0.5b" => {
            json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896,
            "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936,
            "max_position_embeddings": 32_768, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
            "hidden_act": "silu"})
        }
        "qwen3.5-0.8b" => {
            let kind = |n: u32| if n.is_multiple_of(4) { "full_attention" } else { "linear_attention" };
            json!({"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": 24,
            "hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 8, "num_key_value_heads": 2,
            "head_dim": 256, "attn_output_gate": true, "layer_types": (1..=24).map(kind).collect::<Vec<_>>(),
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 16, "linear_value_head_dim": 128, "vocab_size": 248_320,
            "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
            "hidden_act": "silu", "attention_bias": false,
            "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
                "rope_theta": 1e7, "partial_rotary_factor": 0.25}})
        }
        // Only the six full-attention layers of 24.
        "qwen3.5-0.8b-attention" => {
            json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 6, "hidden_size": 1024,
            "intermediate_size": 3584, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
            "vocab_size": 248_320, "max_position_embeddings": 262_144, "rope_theta": 1e7, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false})
        }
        "gpt-oss-20b" => {
            json!({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880,
            "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201_088, "max_position_embeddings": 131_072,
            "sliding_window": 128, "layer_types": (0..24).map(|n| if n % 2 == 0 { "sliding_attention" } else { "full_attention" })
                .collect::<Vec<_>>(), "rope_theta": 150_000.0, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096},
            "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "attention_bias": true, "swiglu_limit": 7.0})
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_a_valid_model_config() {
        for name in SHAPES {
            let config = shape(name).unwrap_or_default();
            let source = kvasir_program::Source::of_config(config);
            assert!(kvasir_program::Model::build(&source).is_ok(), "{name}");
        }
    }
}

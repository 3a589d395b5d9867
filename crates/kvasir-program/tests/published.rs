//! Published configs of well-known models: weight counts, KV widths, RoPE and sliding windows are
//! as published.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_program::{Model, Op, Program, Source};
use serde_json::{Value as Json, json};

fn model(config: Json) -> Model {
    Model::build(&Source::of_config(config)).unwrap()
}

/// Number of parameters, tied weights excluded.
fn weights(program: &Program) -> u64 {
    let own = program.weights.iter().filter(|w| w.tie.is_none());
    own.map(|w| w.shape.iter().map(|n| *n as u64).product::<u64>()).sum()
}

#[test]
fn llama_3_2_1b() {
    let model = model(json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256}));
    assert_eq!(weights(&model.target), 1_235_814_400);
    assert_eq!(model.target.kv_width(), 16 * 2 * 8 * 64);
    let rope = &model.target.ropes[0];
    assert_eq!((rope.inv_freq[0], rope.dims()), (1.0, 64));
    // The lowest frequencies are scaled by the whole factor.
    let last = 500_000f64.powf(-62.0 / 64.0) / 32.0;
    assert!((f64::from(rope.inv_freq[31]) / last - 1.0).abs() < 1e-6);
}

#[test]
fn qwen3_0_6b_and_30b_a3b() {
    let small = model(json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936}));
    assert_eq!(weights(&small.target), 596_049_920);
    let large = model(json!({
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false, "vocab_size": 151936}));
    assert_eq!(weights(&large.target), 30_532_122_624);
}

#[test]
fn deepseek_v3() {
    let model = model(json!({
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "first_k_dense_replace": 3,
        "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
        "vocab_size": 129280}));
    // 671 billion parameters as published, plus the correction biases of 58 MoE layers with 256
    // experts each.
    assert_eq!(weights(&model.target), 671_026_404_352 + 58 * 256);
    assert_eq!(model.target.kv_width(), 61 * (512 + 64));
    assert_eq!(model.predictions.len(), 1);
    let scale = model.target.ops.iter().find_map(|op| match op {
        Op::UpdateAndAttend { scale, .. } => Some(*scale),
        _ => None,
    });
    let magnitude = 0.1 * 40f32.ln() + 1.0;
    assert!((scale.unwrap() - 192f32.powf(-0.5) * magnitude * magnitude).abs() < 1e-7);
    assert_eq!(model.target.ropes[0].amplitude, 1.0);
}

#[test]
fn gemma_3_1b_ties_by_default_and_mixes_windows() {
    let model = model(json!({
        "architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": null, "final_logit_softcapping": null,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
        "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "vocab_size": 262144}));
    assert_eq!(weights(&model.target), 999_885_952);
    let global: Vec<usize> = (0..26).filter(|i| model.target.layers[*i].window.is_none()).collect();
    assert_eq!(global, [5, 11, 17, 23]);
}

#[test]
fn phi_3_mini_128k_has_two_kinds_of_angles() {
    let factors = |first: f64| (0..48).map(|i| first + f64::from(i)).collect::<Vec<f64>>();
    let model = model(json!({
        "architectures": ["Phi3ForCausalLM"], "hidden_act": "silu", "hidden_size": 3072,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": false,
        "rope_scaling": {"type": "longrope", "long_factor": factors(2.0), "short_factor": factors(1.0)},
        "vocab_size": 32064}));
    assert_eq!(weights(&model.target), 3_821_079_552);
    let rope = &model.target.ropes[0];
    assert!((rope.amplitude - (1.0 + 32f32.ln() / 4096f32.ln()).sqrt()).abs() < 1e-6);
    assert_eq!((rope.frequencies(4096)[0], rope.frequencies(4097)[0]), (1.0, 0.5));
    assert_eq!((model.target.prefix_salt(4096), model.target.prefix_salt(4097)), (0, 1));
}

#[test]
fn unsupported_configs_are_refused_by_name() {
    let with = |key: &str, value: Json| {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 512});
        config[key] = value;
        Model::build(&Source::of_config(config)).unwrap_err().to_string()
    };
    assert!(with("architectures", json!(["FooForCausalLM"])).contains("\"FooForCausalLM\""));
    assert!(with("rope_scaling", json!({"rope_type": "xpos", "factor": 2.0})).contains("\"xpos\""));
    assert!(with("hidden_act", json!("relu")).contains("\"relu\""));
    assert!(with("num_key_value_heads", json!(3)).contains("num_key_value_heads"));
    assert!(with("num_hidden_layers", json!(1 << 20)).contains("num_hidden_layers"));
    assert!(with("head_dim", json!(7)).contains("7"));
    assert!(with("dtype", json!("int8")).contains("\"int8\""));
}

/// Gemma 3 4B's text model as published: most keys are absent.
#[test]
fn gemma_3_4b() {
    let model = model(json!({
        "architectures": ["Gemma3ForCausalLM"], "hidden_size": 2560, "intermediate_size": 10240,
        "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024}));
    assert_eq!(weights(&model.target), 3_880_263_168);
    let windows = model.target.layers.iter().filter(|layer| layer.window == Some(1024)).count();
    assert_eq!((windows, model.target.max_positions), (29, 131_072));
    // Only the full-attention layers' rope is scaled.
    let firsts: Vec<_> = model.target.ropes.iter().map(|rope| rope.inv_freq[0]).collect();
    assert_eq!(firsts, [1.0, 0.125]);
}

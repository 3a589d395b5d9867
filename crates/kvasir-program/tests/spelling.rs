//! Config spellings: aliases, defaults of absent keys, and RoPE variants build the same program.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_program::{Activation, DecayGate, Model, Op, Role, Source, Tap};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// A small config of an architecture, with `more` added or replacing keys.
fn small(architecture: &str, more: Json) -> Result<Model, String> {
    let mut config = json!({
        "architectures": [architecture], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 1024,
        "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "rope_theta": 10000.0});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Model::build(&Source::of_config(config)).map_err(|e| e.to_string())
}

#[test]
fn spellings_of_a_rope_mean_the_same() {
    let rope = |more: Json| small("LlamaForCausalLM", more).unwrap().target.ropes.remove(0);
    let scaled = |scaling: Json| rope(json!({"rope_scaling": scaling}));
    // Dynamic scaling changes nothing within the original context length.
    assert_eq!(scaled(json!({"type": "dynamic", "factor": 4.0})), rope(json!({})));
    // An absent factor follows from the context lengths; an absent original length is the model's.
    let answered = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    assert_eq!(
        scaled(json!({"rope_type": "yarn", "original_max_position_embeddings": 256})),
        scaled(answered.clone())
    );
    let newer = json!({"rope_theta": null, "rope_parameters": answered, "rope_scaling": null});
    assert_eq!(rope(newer), scaled(answered));
    let llama3 =
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    let mut whole = llama3.clone();
    whole["original_max_position_embeddings"] = 1024.into();
    assert_eq!(scaled(llama3), scaled(whole));
}

#[test]
fn experts_have_the_activation_of_the_config() {
    for architecture in ["MixtralForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM"] {
        let activation = |name: &str| {
            let model = small(architecture, json!({"hidden_act": name, "n_shared_experts": 1}))?;
            let of = |op: &Op| match op {
                Op::Mixture { experts, .. } => Some(experts.activation),
                Op::Gate { activation, .. } => Some(*activation),
                _ => None,
            };
            Ok::<_, String>(model.target.ops.iter().filter_map(of).collect::<Vec<_>>())
        };
        let all = activation("gelu_new").unwrap();
        assert!(!all.is_empty() && all.iter().all(|a| *a == Activation::GeluTanh), "{architecture}: {all:?}");
        assert!(activation("relu").unwrap_err().contains("relu"), "{architecture}");
    }
}

/// A small config without `key`, and with `more` added.
fn without(architecture: &str, key: &str, more: Json) -> Model {
    let mut config = json!({
        "architectures": [architecture], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 30,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 1024,
        "num_local_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
        "head_dim": 16, "use_sliding_window": true, "n_group": 8, "topk_group": 4, "rope_local_base_freq": 1e4,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16,
        "num_nextn_predict_layers": 1});
    let map = config.as_object_mut().unwrap();
    map.remove(key);
    map.extend(more.as_object().unwrap().clone());
    Model::build(&Source::of_config(config)).unwrap()
}

#[test]
fn absent_config_keys_get_the_architecture_defaults() {
    for (architecture, key, means) in [
        ("MistralForCausalLM", "sliding_window", json!(4096)),
        ("Qwen2ForCausalLM", "max_window_layers", json!(28)),
        ("Qwen3ForCausalLM", "sliding_window", json!(4096)),
        ("MixtralForCausalLM", "rope_theta", json!(1e6)),
        ("MixtralForCausalLM", "rms_norm_eps", json!(1e-5)),
        ("GptOssForCausalLM", "rope_theta", json!(150_000)),
        ("GptOssForCausalLM", "sliding_window", json!(128)),
        ("GptOssForCausalLM", "swiglu_alpha", json!(1.702)),
        ("Phi3ForCausalLM", "rms_norm_eps", json!(1e-5)),
        ("Gemma3ForCausalLM", "hidden_activation", json!("gelu_pytorch_tanh")),
        ("Gemma3ForCausalLM", "query_pre_attn_scalar", json!(256)),
        ("Gemma3ForCausalLM", "sliding_window", json!(4096)),
        ("DeepseekV3ForCausalLM", "routed_scaling_factor", json!(2.5)),
        ("DeepseekV3ForCausalLM", "n_group", json!(8)),
        ("LlamaForCausalLM", "rms_norm_eps", json!(1e-6)),
        ("Qwen3ForCausalLM", "head_dim", json!(128)),
        ("Gemma3ForCausalLM", "head_dim", json!(256)),
        ("GptOssForCausalLM", "head_dim", json!(64)),
    ] {
        let silent = without(architecture, key, json!({}));
        assert_eq!(silent, without(architecture, key, json!({ key: means })), "{architecture} {key}");
        let other = match &means {
            Json::String(_) => json!("silu"),
            number if number.is_u64() => json!(number.as_u64().unwrap() / 2),
            number => json!(number.as_f64().unwrap() * 2.0),
        };
        assert_ne!(silent, without(architecture, key, json!({ key: other })), "{architecture} {key}");
    }
    // Null differs from an absent key.
    let null = without("MistralForCausalLM", "sliding_window", json!({"sliding_window": null}));
    assert!(null.target.layers.iter().all(|layer| layer.window.is_none()));
    let null = without("Qwen3ForCausalLM", "head_dim", json!({"head_dim": null}));
    assert!(null.target.layers.iter().all(|layer| layer.key_dim == 16));
    for architecture in ["DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM"] {
        let silent = small(
            architecture,
            json!({"n_group": 1, "topk_group": 1, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
            "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16, "head_dim": 16, "n_shared_experts": 1, "first_k_dense_replace": 1,
            "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}),
        );
        assert_eq!(silent.unwrap().predictions.len(), 1, "{architecture}");
    }
}

#[test]
fn ropes_that_a_family_means_by_something_else() {
    let gpt_oss = |more: Json| without("GptOssForCausalLM", "-", more).target.ropes.remove(0);
    let yarn = json!({"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false,
        "original_max_position_embeddings": 4096});
    assert_eq!(gpt_oss(json!({})), gpt_oss(json!({"rope_scaling": yarn})));
    assert_eq!(gpt_oss(json!({"rope_scaling": null})), gpt_oss(json!({"rope_scaling": yarn})));
    assert_ne!(gpt_oss(json!({"rope_scaling": {"rope_type": "default"}})), gpt_oss(json!({})));
    let phi = |kind: &str, original: Json| {
        let factors = |by: f64| vec![by; 8];
        let scaling = json!({"type": kind, "long_factor": factors(2.0), "short_factor": factors(1.5)});
        let more = json!({"rope_scaling": scaling, "original_max_position_embeddings": original});
        without("Phi3ForCausalLM", "-", more).target.ropes.remove(0)
    };
    assert_eq!(phi("yarn", json!(512)), phi("longrope", json!(512)));
    // The value beside the rope object takes precedence over the one inside.
    let llama = |top: Json, inner: u32| {
        let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": inner});
        let more = json!({"rope_scaling": scaling, "original_max_position_embeddings": top});
        small("LlamaForCausalLM", more).unwrap().target.ropes.remove(0)
    };
    assert_eq!(llama(json!(128), 256), llama(json!(null), 128));
    let seeing =
        small("Gemma3ForCausalLM", json!({"use_bidirectional_attention": true, "rope_local_base_freq": 1e4}));
    assert!(seeing.unwrap_err().contains("use_bidirectional_attention"));
}

#[test]
fn experts_are_counted_under_any_of_their_names() {
    for architecture in ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM"] {
        let named = |name: &str| without(architecture, "num_local_experts", json!({ name: 4 }));
        assert_eq!(named("num_experts"), named("num_local_experts"), "{architecture}");
    }
    let chosen = |name: &str| without("GptOssForCausalLM", "num_experts_per_tok", json!({ name: 2 }));
    assert_eq!(chosen("experts_per_token"), chosen("num_experts_per_tok"));
    let layers =
        |name: &str| without("DeepseekV3ForCausalLM", "num_nextn_predict_layers", json!({ name: 2 }));
    assert_eq!(layers("num_mtp_layers"), layers("num_nextn_predict_layers"));
    assert_eq!(layers("num_mtp_layers").predictions.len(), 2);
}

#[test]
fn explicit_rope_scaling_is_applied() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    let plain = json!({"rope_type": "default", "rope_theta": 1e6});
    let rope = |more: Json| small("LlamaForCausalLM", more).unwrap().target.ropes.remove(0);
    let both = rope(json!({"rope_theta": null, "rope_parameters": plain, "rope_scaling": yarn}));
    assert_eq!(both, rope(json!({"rope_theta": 1e6, "rope_scaling": yarn})));
    assert_ne!(both, rope(json!({"rope_theta": 1e6})));
}

#[test]
fn a_stored_head_overrides_tied_embeddings() {
    let build = |stored: bool, tie: bool| {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 1024, "tie_word_embeddings": tie});
        let program = Model::build(&Source::of_config(config.clone())).unwrap().target;
        let shapes = program.weights.iter().filter(|w| w.role != Role::Head && w.tie.is_none());
        let mut tensors: BTreeMap<_, _> = shapes.map(|w| (w.name.clone(), w.shape.clone())).collect();
        if stored {
            tensors.insert("lm_head.weight".to_owned(), vec![512, 64]);
        }
        let model = Model::build(&Source { tensors: Some(tensors), ..Source::of_config(config) });
        model.map(|model| model.target.weights.iter().any(|w| w.tie.is_some())).map_err(|e| e.to_string())
    };
    assert_eq!(build(true, true), Ok(false));
    assert_eq!(build(true, false), Ok(false));
    assert_eq!(build(false, true), Ok(true));
    assert!(build(false, false).unwrap_err().contains("lm_head.weight"));
}

#[test]
fn parts_with_and_without_rope_are_spelled_in_several_ways() {
    let rotations = |more: Json| {
        let built = small("SmolLM3ForCausalLM", more)?;
        let rotary = built.target.ops.iter().filter(|op| matches!(op, Op::Rotary { .. }));
        Ok::<_, String>(rotary.count())
    };
    // Two per layer: of the queries and of the keys.
    assert_eq!(rotations(json!({})), Ok(6));
    assert_eq!(rotations(json!({"no_rope_layers": [1, 0, 1]})), Ok(4));
    assert_eq!(rotations(json!({"no_rope_layer_interval": 3})), Ok(4));
    assert!(rotations(json!({"no_rope_layers": [1]})).unwrap_err().contains("no_rope_layers"));
    let dims = |more: Json| small("MiniMaxM2ForCausalLM", more).map(|built| built.target.ropes[0].dims());
    assert_eq!(dims(json!({"rotary_dim": 8})), Ok(8));
    assert_eq!(dims(json!({"head_dim": 32, "rotary_dim": 8})), Ok(8));
    assert_eq!(dims(json!({"partial_rotary_factor": 0.5})), Ok(8));
    // A quotient that is not a finite binary fraction.
    assert_eq!(dims(json!({"head_dim": 98, "rotary_dim": 38})), Ok(38));
    assert!(dims(json!({"attn_type_list": [1, 0, 1]})).unwrap_err().contains("attn_type_list"));
}

#[test]
fn queries_grow_with_the_position() {
    let built = |factor: f64| {
        small(
            "Ministral3ForCausalLM",
            json!({"head_dim": 16, "partial_rotary_factor": factor, "rope_parameters": {
            "rope_type": "default", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 32}}),
        )
    };
    let ropes = built(1.0).unwrap().target.ropes;
    let amplitudes = |position| ropes.iter().map(|rope| rope.turn(0.0, position).0).collect::<Vec<_>>();
    assert_eq!(amplitudes(31), [1.0, 1.0]);
    assert_eq!(amplitudes(95), [1.0, 1.0 + 0.1 * 3f32.ln()]);
    assert!(built(0.5).unwrap_err().contains("8 of 16 places unscaled"));
}

#[test]
fn kda_layer_lists_count_from_one() {
    let delta_layers = |kda: Json, full: Json, more: Json| {
        let linear = json!({"kda_layers": kda, "full_attn_layers": full, "num_heads": 2, "head_dim": 16});
        let mut config = json!({
            "linear_attn_config": linear, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
            "v_head_dim": 16, "first_k_dense_replace": 1});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let built = small("KimiLinearForCausalLM", config)?;
        assert!(!built.target.ops.iter().any(|op| matches!(op, Op::Rotary { .. })));
        Ok::<_, String>(built.target.ops.iter().filter(|op| matches!(op, Op::GatedDelta { .. })).count())
    };
    assert_eq!(delta_layers(json!([1, 2]), json!([3]), json!({})), Ok(2));
    assert_eq!(delta_layers(json!([3]), json!([1, 2]), json!({})), Ok(1));
    let error = |kda: Json, full: Json, more: Json| delta_layers(kda, full, more).unwrap_err();
    assert!(error(json!([1]), json!([3]), json!({})).contains("lack layer 2"));
    assert!(error(json!([1, 2]), json!([2, 3]), json!({})).contains("both list layer 2"));
    assert!(error(json!([1, 2]), json!([3]), json!({"mla_use_nope": false})).contains("mla_use_nope"));
    let softmax = json!({"moe_router_activation_func": "softmax"});
    assert!(error(json!([1, 2]), json!([3]), softmax).contains("scoring_func is \"softmax\""));
}

#[test]
fn glm5_next_settings_are_validated() {
    let small_glm = |more: Json| {
        let linear = json!({"num_heads": 2, "head_dim": 16});
        let mut config = json!({
            "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_attn_config": linear,
            "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 16, "index_n_heads": 2,
            "index_head_dim": 8, "index_topk": 16, "index_kpool": 4, "n_shared_experts": 1, "swiglu_limit": 2.5});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        small("Glm5NextForCausalLM", config)
    };
    let gates = |more: Json| {
        let of = |op: &Op| if let Op::GatedDelta { form, .. } = op { Some(form.gate) } else { None };
        small_glm(more).unwrap().target.ops.iter().filter_map(of).collect::<Vec<_>>()
    };
    let linear = |more: Json| {
        let mut linear = json!({"num_heads": 2, "head_dim": 16});
        linear.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"linear_attn_config": linear})
    };
    let bounded = |lower_bound| vec![DecayGate::BoundedChannel { lower_bound }; 2];
    assert_eq!(gates(json!({})), bounded(-5.0));
    assert_eq!(gates(linear(json!({"gate_lower_bound": -3.0}))), bounded(-3.0));
    assert_eq!(gates(linear(json!({"gate_lower_bound": null}))), vec![DecayGate::Channel; 2]);
    let target = small_glm(json!({})).unwrap().target;
    assert_eq!(target.value(target.tap(Tap::IntoLayer(2)).unwrap()).width(), 4 * target.hidden);
    let limited = |op: &&Op| matches!(op, Op::Gate { activation, .. } if *activation == Activation::LimitedSwiglu { limit: 2.5 });
    assert_eq!(target.ops.iter().filter(limited).count(), 3, "a shared expert per layer");
    assert!(target.with_features([0, 1, 2], 64).unwrap_err().to_string().contains("residual streams"));
    for (more, why) in [
        (json!({"index_topk": 18}), "index_topk is 18, not a multiple of 4"),
        (json!({"hc_mult": 0}), "hc_mult is 0"),
        (json!({"hc_mult": 65}), "hc_mult is 65, more than 64"),
        (json!({"hc_sinkhorn_iters": 1000}), "hc_sinkhorn_iters is 1000, more than 64"),
        (linear(json!({"gate_lower_bound": 5.0})), "linear_attn_config.gate_lower_bound is 5"),
        (linear(json!({"safe_gate": false})), "linear_attn_config.safe_gate is false"),
        (json!({"indexer_types": ["full", "shared", "full"]}), "indexer_types has \"shared\""),
        (json!({"index_kpool_always_select_tail": false}), "index_kpool_always_select_tail is false"),
        (json!({"qk_rope_head_dim": 8}), "qk_rope_head_dim is 8, only 0"),
        (
            json!({"layer_types": ["linear_attention", "sliding_attention", "full_attention"]}),
            "sliding_attention",
        ),
        (json!({"q_lora_rank": null}), "q_lora_rank is missing"),
        (json!({"swiglu_limit": 0.0}), "swiglu_limit is 0"),
    ] {
        let error = small_glm(more).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn qwen4_exp_settings_are_validated() {
    let small_qwen4 = |more: Json| {
        let mut config = json!({
            "layer_types": ["linear_attention", "linear_attention", "full_attention"], "head_dim": 16,
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32, "hc_lowrank": 8,
            "indexer_n_heads": 2, "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4,
            "ple_layer_ids": [2], "ngram_size": 3, "heads_per_ngram": 2, "ple_conv_kernel_size": 4,
            "ple_layer_multipliers": [1, -3, 9_007_199_254_740_993_i64], "ple_head_vocab_sizes": [7, 11, 13, 17],
            "ple_head_offsets": [0, 7, 18, 31], "eos_token_id": [5, 9]});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        small("Qwen4ExpForCausalLM", config)
    };
    let target = small_qwen4(json!({})).unwrap().target;
    let forms = target.ops.iter().filter_map(|op| match op {
        Op::NgramEmbed { form, .. } => Some(form),
        _ => None,
    });
    let forms: Vec<_> = forms.collect();
    assert_eq!(forms.len(), 1);
    assert_eq!(forms[0].multipliers, [1, -3, 9_007_199_254_740_993]);
    assert_eq!((forms[0].end, forms[0].tables.len()), (9, 1));
    assert!(target.weights.iter().any(|weight| weight.shape == [48, 16]), "rows of all heads");
    assert!(target.ops.iter().any(|op| matches!(op, Op::ShortConv { dilation: 3, kernel: 4, .. })));
    let without = small_qwen4(json!({"ple_layer_ids": []})).unwrap().target;
    assert!(!without.ops.iter().any(|op| matches!(op, Op::NgramEmbed { .. })));
    for (more, why) in [
        (json!({"ple_layer_ids": [1, 2]}), "ple_layer_ids is not one layer"),
        (json!({"ple_layer_ids": [3]}), "ple_layer_ids has 3, which is no recurrent layer"),
        (json!({"ple_layer_ids": [9]}), "ple_layer_ids has 9"),
        (json!({"ngram_size": 1}), "ngram_size is 1"),
        (json!({"ngram_size": 1000}), "ngram_size is 1000"),
        (json!({"ple_layer_multipliers": [1, 2]}), "ple_layer_multipliers has 2 numbers, not 3"),
        (json!({"ple_layer_multipliers": null}), "ple_layer_multipliers is missing"),
        (json!({"ple_head_vocab_sizes": [7, 11, 0, 17]}), "ple_head_vocab_sizes has a 0"),
        (json!({"ple_head_offsets": [0, 7, -18, 31]}), "ple_head_offsets is not a list of 4"),
        (json!({"indexer_budget": 18}), "indexer_budget is 18, not a multiple"),
        (json!({"hc_count": 65}), "hc_count is 65, more than 64"),
        (json!({"output_gate_type": "tanh"}), "output_gate_type is \"tanh\""),
    ] {
        let error = small_qwen4(more).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn dense_layers_are_listed_or_counted() {
    let mixtures = |more: Json| {
        let mut config = json!({
            "q_lora_rank": null, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let built = small("Glm4MoeLiteForCausalLM", config)?;
        Ok::<_, String>(built.target.ops.iter().filter(|op| matches!(op, Op::Mixture { .. })).count())
    };
    assert_eq!(mixtures(json!({})), Ok(2));
    assert_eq!(mixtures(json!({"first_k_dense_replace": 2})), Ok(1));
    assert_eq!(mixtures(json!({"mlp_layer_types": ["dense", "dense", "sparse"]})), Ok(1));
    let mixed = mixtures(json!({"mlp_layer_types": ["dense", "sparse", "dense"]}));
    assert!(mixed.unwrap_err().contains("mlp_layer_types has \"dense\" for layer 2"));
}

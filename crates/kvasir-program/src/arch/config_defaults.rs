//! Config defaults: fills in absent keys with the values of each architecture's Transformers config
//! class, and resolves key aliases.
//!
//! Guarded by `tests/spelling.rs`.

use crate::arch::Architecture;
use serde_json::{Value as Json, json};

/// Aliases of the same setting (experts, experts per token, MTP layers). A null under one of them
/// counts as absent.
const NAMES: [&[&str]; 3] = [
    &["num_experts", "num_local_experts", "n_routed_experts"],
    &["num_experts_per_tok", "experts_per_token"],
    &["num_nextn_predict_layers", "num_mtp_layers"],
];

impl Architecture {
    /// Returns the config with aliases resolved and the architecture's defaults filled in. Present
    /// values stay, and so does null.
    pub fn spelled_out(&self, config: &Json) -> Json {
        let Some(map) = config.as_object() else { return config.clone() };
        let mut all = map.clone();
        let is_missing = |name: &&str| map.get(*name).is_none_or(Json::is_null);
        for names in NAMES {
            if let Some(name) = names.iter().find(|name| !is_missing(name)) {
                let value = &map[*name];
                all.extend(
                    names
                        .iter()
                        .filter(|name| is_missing(name))
                        .map(|name| ((*name).to_owned(), value.clone())),
                );
            }
        }
        for (key, value) in self.class_defaults().as_object().into_iter().flatten() {
            all.entry(key).or_insert_with(|| value.clone());
        }
        if self.name == "GptOssForCausalLM" && ["rope_parameters", "rope_scaling"].iter().all(is_missing) {
            // For this family a null `rope_scaling` counts as absent too.
            let yarn = json!({
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096,
            });
            all.insert("rope_scaling".to_owned(), yarn);
        }
        Json::Object(all)
    }

    /// Defaults of the Transformers config class, where they differ from the common ones.
    fn class_defaults(&self) -> Json {
        match self.name {
            "MistralForCausalLM" => json!({"sliding_window": 4096}),
            "Qwen2ForCausalLM" | "Qwen3MoeForCausalLM" => {
                json!({"sliding_window": 4096, "max_window_layers": 28})
            }
            "Qwen3ForCausalLM" => json!({"sliding_window": 4096, "max_window_layers": 28, "head_dim": 128}),
            "MixtralForCausalLM" => json!({"rope_theta": 1e6, "rms_norm_eps": 1e-5}),
            "GptOssForCausalLM" => {
                json!({"rope_theta": 150_000.0, "rms_norm_eps": 1e-5, "sliding_window": 128, "head_dim": 64})
            }
            "Glm4MoeForCausalLM" => json!({"rms_norm_eps": 1e-5, "num_nextn_predict_layers": 1}),
            "Phi3ForCausalLM" => json!({"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}),
            "Gemma3ForCausalLM" => json!({
                "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
                "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
                "max_position_embeddings": 131_072,
            }),
            "DeepseekV3ForCausalLM" | "DeepseekV32ForCausalLM" => {
                json!({"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1})
            }
            _ => json!({}),
        }
    }
}

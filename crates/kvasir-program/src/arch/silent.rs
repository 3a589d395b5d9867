//! What a config leaves unsaid: keys under another name, and values that its architecture then has.

use super::Architecture;
use serde_json::{Value as Json, json};

/// Names of the same number of experts or prediction layers. A null under one of them says nothing.
const NAMES: [&[&str]; 3] = [
    &["num_experts", "num_local_experts", "n_routed_experts"],
    &["num_experts_per_tok", "experts_per_token"],
    &["num_nextn_predict_layers", "num_mtp_layers"],
];

impl Architecture {
    /// A config with everything said that its architecture means by silence. Values that are there stay, and null is one of them.
    pub fn spelled_out(&self, config: &Json) -> Json {
        let Some(map) = config.as_object() else { return config.clone() };
        let mut all = map.clone();
        for names in NAMES {
            let unsaid = |name: &&&str| map.get(**name).is_none_or(Json::is_null);
            if let Some(name) = names.iter().find(|name| !unsaid(name)) {
                let said = &map[*name];
                all.extend(names.iter().filter(unsaid).map(|name| ((*name).to_owned(), said.clone())));
            }
        }
        for (key, value) in self.meant().as_object().into_iter().flatten() {
            all.entry(key).or_insert_with(|| value.clone());
        }
        Json::Object(all)
    }

    /// Values of absent keys, where they are not everybody's.
    fn meant(&self) -> Json {
        match self.name {
            "MistralForCausalLM" => json!({"sliding_window": 4096}),
            "Qwen2ForCausalLM" | "Qwen3ForCausalLM" | "Qwen3MoeForCausalLM" => {
                json!({"sliding_window": 4096, "max_window_layers": 28})
            }
            "MixtralForCausalLM" => json!({"rope_theta": 1e6, "rms_norm_eps": 1e-5}),
            "GptOssForCausalLM" => {
                json!({"rope_theta": 150_000.0, "rms_norm_eps": 1e-5, "sliding_window": 128})
            }
            "Glm4MoeForCausalLM" | "Phi3ForCausalLM" => json!({"rms_norm_eps": 1e-5}),
            "Gemma3ForCausalLM" => json!({
                "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
            }),
            "DeepseekV3ForCausalLM" | "DeepseekV32ForCausalLM" => {
                json!({"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5})
            }
            _ => json!({}),
        }
    }
}

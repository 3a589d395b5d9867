//! What a config leaves unsaid: keys under another name, and values that its architecture then has.

use super::Architecture;
use serde_json::{Map, Value as Json, json};

/// Names of the same number of experts or prediction layers.
const NAMES: [&[&str]; 2] = [
    &["num_experts", "num_local_experts", "n_routed_experts"],
    &["num_nextn_predict_layers", "num_mtp_layers"],
];

fn say(config: &mut Map<String, Json>, key: &str, value: &Json) {
    if !config.contains_key(key) {
        config.insert(key.to_owned(), value.clone());
    }
}

impl Architecture {
    /// A config with everything said that its architecture means by silence. Keys that are there stay, null included.
    pub fn spelled_out(&self, config: &Json) -> Json {
        let Some(map) = config.as_object() else { return config.clone() };
        let mut all = map.clone();
        for names in NAMES {
            if let Some(said) = names.iter().find_map(|name| map.get(*name)) {
                names.iter().for_each(|name| say(&mut all, name, said));
            }
        }
        for (key, value) in self.meant().as_object().into_iter().flatten() {
            say(&mut all, key, value);
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

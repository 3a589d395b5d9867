//! The language model inside a multimodal (vision-language) checkpoint, presented as a text-only
//! model.
//!
//! Maps the nested config to a text-only config and tensor names to their text-only spelling.
//!
//! Guarded by `tests/language_model.rs`.

use crate::error::{Error, Result};
use serde_json::Value as Json;

/// A multimodal architecture with a supported language model.
struct Joined {
    name: &'static str,
    /// Architecture and `model_type` of the language model.
    text: &'static str,
    model_type: &'static str,
}

const JOINED: [Joined; 2] = [
    Joined { name: "Gemma3ForConditionalGeneration", text: "Gemma3ForCausalLM", model_type: "gemma3_text" },
    Joined { name: "Mistral3ForConditionalGeneration", text: "MistralForCausalLM", model_type: "mistral" },
];

/// Keys inherited from the outer config where the text config lacks them.
const FOR_TEXT: [&str; 6] =
    ["bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config"];

/// A key of the outer config that overrides the text config: the outer model ties the LM head.
const FOR_BOTH: &str = "tie_word_embeddings";

/// Name prefixes of vision tensors.
const NOT_TEXT: [&str; 2] = ["vision_tower.", "multi_modal_projector."];

/// The language model's config, or `None` if the architecture is not multimodal.
pub(crate) fn config(joined: &Json) -> Result<Option<Json>> {
    let name = joined.pointer("/architectures/0").and_then(Json::as_str);
    let Some(kind) = JOINED.iter().find(|kind| Some(kind.name) == name) else { return Ok(None) };
    let text = joined.get("text_config").and_then(Json::as_object);
    let mut text = text.cloned().ok_or_else(|| Error::at("text_config", "is missing or not an object"))?;
    // The same vision architecture is also combined with unsupported language models.
    let model_type = text.get("model_type").and_then(Json::as_str).unwrap_or(kind.model_type);
    if model_type != kind.model_type {
        let why = format!("{model_type:?} is not supported, only {:?}", kind.model_type);
        return Err(Error::at("text_config.model_type", why));
    }
    text.insert("architectures".to_owned(), Json::from(vec![kind.text]));
    for key in FOR_TEXT {
        if let Some(value) = joined.get(key).filter(|value| !value.is_null()) {
            let own_value = text.entry(key).or_insert(Json::Null);
            if own_value.is_null() {
                *own_value = value.clone();
            }
        }
    }
    if let Some(tied) = joined.get(FOR_BOTH) {
        text.insert(FOR_BOTH.to_owned(), tied.clone());
    }
    Ok(Some(Json::Object(text)))
}

/// The text-only name of a tensor or module, or `None` if it belongs to the vision part.
pub(crate) fn name(joined: &str) -> Option<String> {
    // `language_model` was the outer prefix in older checkpoints and is the inner one in newer
    // ones.
    if let Some(name) = joined.strip_prefix("language_model.") {
        return Some(name.to_owned());
    }
    let inner = joined.strip_prefix("model.");
    if let Some(name) = inner.and_then(|inner| inner.strip_prefix("language_model.")) {
        return Some(format!("model.{name}"));
    }
    let place = inner.unwrap_or(joined);
    (!NOT_TEXT.iter().any(|other| place.starts_with(other))).then(|| joined.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn old_and_new_multimodal_names_map_to_text_names() {
        let own = |joined| name(joined).unwrap_or_default();
        assert_eq!(
            own("language_model.model.layers.0.mlp.up_proj.weight"),
            "model.layers.0.mlp.up_proj.weight"
        );
        assert_eq!(
            own("model.language_model.layers.0.mlp.up_proj.weight"),
            "model.layers.0.mlp.up_proj.weight"
        );
        assert_eq!(own("language_model.lm_head.weight"), "lm_head.weight");
        assert_eq!(own("lm_head.weight"), "lm_head.weight");
        assert_eq!(own("model.something_else.weight"), "model.something_else.weight");
        for seeing in
            ["vision_tower.a.weight", "model.vision_tower.a.weight", "model.multi_modal_projector.b"]
        {
            assert_eq!(name(seeing), None);
        }
    }

    #[test]
    fn text_config_overrides_the_multimodal_config() {
        let joined = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "bos_token_id": 2,
            "vision_config": {"hidden_size": 1}, "tie_word_embeddings": true,
            "text_config": {"hidden_size": 64, "bos_token_id": 7, "eos_token_id": null, "tie_word_embeddings": false},
        });
        assert_eq!(
            config(&joined).unwrap().unwrap(),
            json!({"architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "bos_token_id": 7, "eos_token_id": [1, 106],
                "tie_word_embeddings": true})
        );
        assert_eq!(config(&json!({"architectures": ["Gemma3ForCausalLM"]})).unwrap(), None);
        let without = json!({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": 3});
        assert!(config(&without).unwrap_err().to_string().contains("text_config"));
        let other = json!({
            "architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"model_type": "ministral3"}});
        assert!(config(&other).unwrap_err().to_string().contains("\"ministral3\" is not supported"));
    }
}

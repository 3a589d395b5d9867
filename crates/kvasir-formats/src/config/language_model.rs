//! The language model inside a multimodal (vision-language) checkpoint, presented as a text-only
//! model.
//!
//! Maps the nested config to a text-only config and tensor names to their text-only spelling, as the
//! architecture's multimodal classes say.
//!
//! Guarded by `tests/language_model.rs`.

use crate::error::{Error, Result};
use kvasir_program::{Architecture, Multimodal};
use serde_json::Value as Json;

/// Keys inherited from the outer config where the text config lacks them.
const FOR_TEXT: [&str; 6] =
    ["bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config"];

/// A key of the outer config that overrides the text config: the outer model ties the LM head.
const FOR_BOTH: &str = "tie_word_embeddings";

/// The language model of a multimodal checkpoint.
#[derive(Debug)]
pub(crate) struct LanguageModel {
    /// Its config, as that of a text-only model.
    pub(crate) config: Json,
    parts: Multimodal,
}

impl LanguageModel {
    /// `None` if the config is not of a multimodal architecture.
    pub(crate) fn of(joined: &Json) -> Result<Option<Self>> {
        let name = joined.pointer("/architectures/0").and_then(Json::as_str).unwrap_or_default();
        let Some((first, class)) = Architecture::multimodal(name).next() else { return Ok(None) };
        let Some(parts) = class.text_of else { return Ok(None) };
        let text = joined.get(parts.config).and_then(Json::as_object);
        let mut text = text.cloned().ok_or_else(|| Error::at(parts.config, "is missing or not an object"))?;
        // One multimodal class may hold one of several language models.
        let architecture = match text.get("model_type").and_then(Json::as_str) {
            None => first,
            Some(model_type) => {
                let mut all = Architecture::multimodal(name);
                match all.find(|(_, class)| class.model_type == model_type) {
                    Some((found, _)) => found,
                    None => {
                        let known: Vec<_> =
                            Architecture::multimodal(name).map(|(_, class)| class.model_type).collect();
                        let why = format!("{model_type:?} is not supported, only {}", known.join(", "));
                        return Err(Error::at(format!("{}.model_type", parts.config), why));
                    }
                }
            }
        };
        text.insert("architectures".to_owned(), Json::from(vec![architecture.name()]));
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
        Ok(Some(Self { config: Json::Object(text), parts }))
    }

    /// The text-only name of a tensor or module, or `None` if it belongs to another part.
    pub(crate) fn name(&self, joined: &str) -> Option<String> {
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
        let is_left_out = self.parts.left_out.iter().any(|other| place.starts_with(other));
        (!is_left_out).then(|| joined.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn old_and_new_multimodal_names_map_to_text_names() {
        let joined = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}});
        let model = LanguageModel::of(&joined).unwrap().unwrap();
        let own = |joined| model.name(joined).unwrap_or_default();
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
            assert_eq!(model.name(seeing), None);
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
            LanguageModel::of(&joined).unwrap().unwrap().config,
            json!({"architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "bos_token_id": 7, "eos_token_id": [1, 106],
                "tie_word_embeddings": true})
        );
        assert!(LanguageModel::of(&json!({"architectures": ["Gemma3ForCausalLM"]})).unwrap().is_none());
        let without = json!({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": 3});
        assert!(LanguageModel::of(&without).unwrap_err().to_string().contains("text_config"));
        let other = json!({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"model_type": "mistral4"}});
        let error = LanguageModel::of(&other).unwrap_err().to_string();
        assert!(error.contains("\"mistral4\" is not supported, only mistral"), "{error}");
    }
}

//! [`Renames`]: maps tensor names that only one architecture uses (`mtp.`, `backbone.`) to canonical names
//! (`model.layers.N.`).

use crate::error::{Error, Result};
use kvasir_program::Architecture;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// The tensor renames of one checkpoint.
pub(crate) struct Renames {
    architecture: &'static Architecture,
    layers: usize,
}

impl Renames {
    /// `None` if the architecture renames nothing. An unknown one is refused when its program is
    /// built.
    pub(crate) fn of(config: &Json) -> Option<Self> {
        let architecture = Architecture::of(config).ok().filter(|known| !known.renames.is_empty())?;
        let layers = config.get("num_hidden_layers").and_then(Json::as_u64).unwrap_or(0);
        Some(Self { architecture, layers: usize::try_from(layers).unwrap_or(usize::MAX) })
    }

    /// The canonical name of a tensor.
    pub(crate) fn canonical_tensor(&self, name: &str) -> String {
        let renames = self.architecture.renames.iter();
        renames.clone().find_map(|rename| rename.apply(name, self.layers)).unwrap_or_else(|| name.to_owned())
    }

    /// Renames tensors. Fails if two tensors would get the same name; the error has the name in the
    /// file.
    pub(crate) fn apply<T>(&self, tensors: &mut BTreeMap<String, T>) -> Result<()> {
        for (old, entry) in std::mem::take(tensors) {
            if tensors.insert(self.canonical_tensor(&old), entry).is_some() {
                return Err(Error::at(format!("tensor {old}"), "occurs under two names"));
            }
        }
        Ok(())
    }

    /// The canonical name of a module: a tensor name without its last parts.
    pub(crate) fn canonical_module(&self, name: &str) -> String {
        let mut renamed = self.canonical_tensor(&format!("{name}."));
        renamed.pop();
        renamed
    }

    /// The name of a tensor that every prediction layer (MTP) has.
    pub(crate) fn prediction_tensor(&self) -> String {
        format!("model.layers.{}.eh_proj.weight", self.layers)
    }

    /// Sets the number of prediction layers in a config without it (Qwen3-Next).
    pub(crate) fn set_prediction_count(&self, config: &mut Json, has_prediction: bool) {
        let key = "num_nextn_predict_layers";
        let is_missing = self.architecture.spelled_out(config).get(key).is_none_or(Json::is_null);
        if let Some(map) = config.as_object_mut().filter(|_| has_prediction && is_missing) {
            map.insert(key.to_owned(), 1.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prediction_layers_follow_the_last_layer() {
        let mut config = json!({"architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 48});
        let renames = Renames::of(&config).unwrap();
        assert_eq!(renames.canonical_tensor("mtp.fc.weight"), renames.prediction_tensor());
        assert_eq!(
            renames.canonical_tensor("mtp.layers.0.mlp.gate.weight"),
            "model.layers.48.mlp.gate.weight"
        );
        assert_eq!(renames.canonical_tensor("model.norm.weight"), "model.norm.weight");
        assert_eq!(renames.canonical_module("mtp.layers.0.mlp.gate"), "model.layers.48.mlp.gate");
        renames.set_prediction_count(&mut config, true);
        assert_eq!(config["num_nextn_predict_layers"], 1);
        let other = json!({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2});
        assert!(Renames::of(&other).is_none());
    }
}

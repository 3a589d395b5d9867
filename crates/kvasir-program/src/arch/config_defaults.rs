//! Config defaults: fills in absent keys with the values of each architecture's Transformers config
//! class, and resolves key aliases.
//!
//! Guarded by `tests/spelling.rs`.

use crate::arch::Architecture;
use serde_json::{Map, Value as Json};

/// Aliases of the same setting (experts, experts per token, MTP layers). A null under one of them
/// counts as absent.
const NAMES: [&[&str]; 3] = [
    &["num_experts", "num_local_experts", "n_routed_experts"],
    &["num_experts_per_tok", "experts_per_token", "top_k_experts", "num_experts_per_token"],
    &["num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"],
];

impl Architecture {
    /// Returns the config with aliases resolved and the architecture's defaults filled in. Present
    /// values stay, and so does null.
    pub fn spelled_out(&self, config: &Json) -> Json {
        let Some(map) = config.as_object() else { return config.clone() };
        let mut all = map.clone();
        for names in NAMES {
            if let Some(name) = names.iter().find(|name| !is_missing(map, name)) {
                let value = &map[*name];
                all.extend(
                    names
                        .iter()
                        .filter(|name| is_missing(map, name))
                        .map(|name| ((*name).to_owned(), value.clone())),
                );
            }
        }
        (self.defaults)(&mut all);
        Json::Object(all)
    }
}

/// Whether a key is absent or null.
pub(crate) fn is_missing(config: &Map<String, Json>, key: &str) -> bool {
    config.get(key).is_none_or(Json::is_null)
}

/// Sets those keys that are absent; null stays.
pub(crate) fn fill<const N: usize>(config: &mut Map<String, Json>, values: [(&str, Json); N]) {
    for (key, value) in values {
        config.entry(key).or_insert(value);
    }
}

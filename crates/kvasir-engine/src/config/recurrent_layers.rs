//! Refuses cache options that a model with recurrent layers cannot use: such a model has one state
//! per sequence instead of a row per token.

use crate::config::error::{ConfigError, ensure};
use crate::config::resolve::Resolved;

impl Resolved {
    /// Fails if the model has recurrent layers and the cache has ring buffers.
    pub(super) fn check_recurrent_layers(&self) -> Result<(), ConfigError> {
        ensure(self.cache.states.is_none() || self.cache.rings.is_none(), || {
            let reason = "ring buffers overwrite rows that a sequence needs again after it is rewound to a \
                          checkpoint";
            ConfigError::recurrent_layers(("rings", &"on"), reason)
        })
    }
}

impl ConfigError {
    /// The error for a parameter value that a model with recurrent layers cannot use.
    pub fn recurrent_layers(
        argument: (&'static str, &dyn std::fmt::Display),
        reason: impl Into<String>,
    ) -> Self {
        Self::conflict(argument, ("recurrent_layers", &"of the model"), reason)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::EngineConfig;
    use crate::config::facts::Facts;
    use kvasir_kv::{CacheKind, StateConfig};

    #[test]
    fn recurrent_layers_refuse_ring_buffers() {
        let facts = Facts {
            max_model_len: 4096,
            max_default_capacity: Some(4096),
            windows: vec![64],
            has_rings: true,
            is_cpu: true,
            ..Facts::default()
        };
        let config =
            EngineConfig { cache: Some(CacheKind::Contiguous), rings: true, ..EngineConfig::default() };
        let mut resolved = config.resolve(&facts).unwrap();
        assert!(resolved.core().is_ok());
        resolved.cache.states = Some(StateConfig { live: 1, checkpoints: 4, tail_rows: 0, interval: 0 });
        let Err(error) = resolved.core() else { panic!("rings and states are accepted") };
        let message = error.to_string();
        assert!(message.contains("rings on") && message.contains("recurrent_layers"), "{message}");
        resolved.cache.rings = None;
        assert_eq!(resolved.core().unwrap().cache().shape().states, resolved.cache.states);
    }
}

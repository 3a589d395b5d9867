//! Parameters that exclude window groups: pools of their own for sliding-window layers.

use crate::config::error::{ConfigError, ensure};
use crate::config::resolve::Resolved;

impl Resolved {
    /// Refuses what a cache with window groups does not support, by name.
    pub(super) fn check_window_groups(&self) -> Result<(), ConfigError> {
        ensure(self.cache.windows.is_empty() || !self.policy.is_rectangular(), || {
            let reason = "its steps are padded to static shapes, and the rows of window groups are not";
            let (policy, windows) = (self.policy.build().name(), self.cache.windows.len());
            ConfigError::conflict(("policy", &policy), ("window_groups", &windows), reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::EngineConfig;
    use crate::config::facts::Facts;
    use crate::config::policy::PolicyConfig;
    use crate::scheduler::policy::rectangular::config::RectangularConfig;
    use kvasir_kv::WindowConfig;

    #[test]
    fn rectangles_are_refused_beside_window_groups() {
        let facts = Facts { max_model_len: 4096, max_default_capacity: Some(4096), ..Facts::default() };
        let policy = PolicyConfig::Rectangular(RectangularConfig::default());
        let rectangular = EngineConfig { policy, ..EngineConfig::default() };
        for config in [EngineConfig::default(), rectangular] {
            let mut resolved = config.resolve(&facts).unwrap();
            assert!(resolved.core().is_ok());
            let window = WindowConfig { window: 64, capacity: 1024, longest_draft: 0 };
            resolved.cache.windows = vec![window];
            let refused = resolved.core().err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), resolved.policy.is_rectangular(), "{refused:?}");
            if let Some(message) = refused {
                assert!(message.starts_with("policy rectangular cannot be combined with window_groups 1"));
            } else {
                assert_eq!(resolved.core().unwrap().cache().shape().windows, [window]);
            }
        }
    }
}

//! Decides whether sliding-window layers have pools of their own (window groups) or join the full
//! group.
//!
//! Joined layers take more memory but compute the same: the attention mask applies the window. So
//! no configuration is refused for joining; the startup log names the reason.

use crate::config::EngineConfig;
use crate::config::error::{ConfigError, ensure};
use crate::config::facts::Facts;
use crate::config::join_reason::JoinReason;
use crate::config::resolve::Resolved;
use kvasir_kv::{CacheKind, GroupKind};

impl EngineConfig {
    /// Why the window layers of a model join the full group; `None` if they have pools of their own,
    /// if there are none, or if they have ring buffers.
    pub(super) fn join_reason(&self, facts: &Facts, kind: CacheKind) -> Option<JoinReason> {
        let has_windows = facts.groups.iter().any(|group| matches!(group.kind, GroupKind::Window(_)));
        if !has_windows || self.rings {
            None
        } else if kind.holds_one_sequence() {
            Some(JoinReason::Cache(kind))
        } else if self.policy.is_rectangular() || !facts.batch_sizes.is_empty() {
            Some(JoinReason::StaticShapes)
        } else if self.transfers_kv {
            Some(JoinReason::KvTransfer)
        } else {
            facts.join_reason
        }
    }
}

impl Resolved {
    /// Refuses a policy that does not support window groups.
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
    use super::*;
    use crate::config::facts::GroupFacts;
    use crate::config::policy::PolicyConfig;
    use crate::scheduler::policy::rectangular::config::RectangularConfig;
    use kvasir_kv::WindowConfig;

    fn facts() -> Facts {
        let window = GroupFacts { kind: GroupKind::Window(64), slot_bytes: 10, tail_row_bytes: 0 };
        Facts {
            max_model_len: 4096,
            max_default_capacity: Some(4096),
            groups: vec![GroupFacts::full(10), window],
            windows: vec![64],
            has_rings: true,
            is_cpu: true,
            ..Facts::default()
        }
    }

    fn rectangular() -> EngineConfig {
        let policy = PolicyConfig::Rectangular(RectangularConfig::default());
        EngineConfig { policy, ..EngineConfig::default() }
    }

    /// Why windows join. Checks that division, cache and core have the same window groups.
    fn reason(config: &EngineConfig, facts: &Facts) -> Option<JoinReason> {
        let resolved = config.resolve(facts).unwrap();
        let division = &resolved.division;
        let windows: Vec<WindowConfig> = division.windows.iter().map(|window| window.config).collect();
        assert_eq!(resolved.cache.windows, windows);
        assert_eq!(resolved.core().unwrap().cache().shape().windows, windows);
        assert!(windows.is_empty() || division.joined_windows.is_none());
        assert_eq!(division.slot_bytes, if windows.is_empty() { 20 } else { 10 });
        division.joined_windows
    }

    #[test]
    fn windows_join_the_full_group_if_unsupported() {
        let of_cache = |kind| EngineConfig { cache: Some(kind), ..EngineConfig::default() };
        for kind in [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells] {
            assert_eq!(reason(&of_cache(kind), &facts()), None);
            assert_eq!(of_cache(kind).resolve(&facts()).unwrap().cache.windows.len(), 1, "{kind}");
        }
        for kind in [CacheKind::Contiguous, CacheKind::Tree] {
            assert_eq!(reason(&of_cache(kind), &facts()), Some(JoinReason::Cache(kind)));
        }
        assert_eq!(reason(&rectangular(), &facts()), Some(JoinReason::StaticShapes));
        let batch_sizes = Facts { batch_sizes: vec![1, 2], ..facts() };
        assert_eq!(reason(&EngineConfig::default(), &batch_sizes), Some(JoinReason::StaticShapes));
        let transfers = EngineConfig { transfers_kv: true, ..EngineConfig::default() };
        assert_eq!(reason(&transfers, &facts()), Some(JoinReason::KvTransfer));
        let trees = Facts { join_reason: Some(JoinReason::TreeDrafts), ..facts() };
        assert_eq!(reason(&EngineConfig::default(), &trees), Some(JoinReason::TreeDrafts));
        let rings = EngineConfig { rings: true, ..of_cache(CacheKind::Contiguous) };
        assert_eq!(reason(&rings, &facts()), None);
    }

    #[test]
    fn rectangular_steps_are_refused_with_window_groups() {
        let mut resolved = rectangular().resolve(&facts()).unwrap();
        resolved.cache.windows = vec![WindowConfig { window: 64, capacity: 1024, longest_draft: 0 }];
        let refused = resolved.core().err().map(|error| error.to_string()).unwrap_or_default();
        let start = "policy rectangular cannot be combined with window_groups 1";
        assert!(refused.starts_with(start), "{refused}");
    }
}

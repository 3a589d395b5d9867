//! Configuration of engines for encoders: texts run whole, and no K/V outlives its step.
//!
//! See decision 0053. An option that contradicts it is refused by name.

use crate::config::EngineConfig;
use crate::config::error::{ConfigError, ensure};
use crate::config::policy::PolicyConfig;
use crate::config::resolve::Facts;
use crate::scheduler::policy::prefill_first::Chunking;

/// Default of `max_num_batched_tokens` at least.
const STEP_TOKENS: u32 = 2048;

impl EngineConfig {
    /// The configuration with the defaults of encoders. `facts.max_model_len` counts the longest text
    /// and one token behind it, which no text has.
    pub(super) fn for_encoder(&self, facts: &Facts) -> Result<Self, ConfigError> {
        let refuse = |parameter, value: &dyn std::fmt::Display, reason: &str| {
            Err(ConfigError::invalid(parameter, value, format!("is impossible for an encoder: {reason}")))
        };
        let policy = match self.policy {
            PolicyConfig::PrefillFirst { chunking: Chunking::On { cap: Some(cap) }, .. } => {
                return refuse("long_prefill_cap", &cap, "it reads each text whole");
            }
            PolicyConfig::PrefillFirst { delay_factor, .. } => {
                PolicyConfig::PrefillFirst { chunking: Chunking::Off, delay_factor }
            }
            PolicyConfig::Chunked { max_extend_tokens, .. }
                if max_extend_tokens != PolicyConfig::MAX_EXTEND_TOKENS =>
            {
                return refuse("max_extend_tokens", &max_extend_tokens, "it reads each text whole");
            }
            PolicyConfig::Chunked { .. } => {
                PolicyConfig::PrefillFirst { chunking: Chunking::Off, delay_factor: 0.0 }
            }
            PolicyConfig::Rectangular(_) => {
                return refuse("policy", &self.policy.build().name(), "it reads each text whole");
            }
        };
        if self.prefix_cache == Some(true) {
            return refuse("prefix_cache", &"on", "a token's state depends on all later ones");
        }
        if self.rings {
            return refuse("rings", &"on", "it keeps no K/V");
        }
        let longest = self.max_model_len.unwrap_or(facts.max_model_len.saturating_sub(1));
        let tokens = self.max_num_batched_tokens.unwrap_or(longest.max(STEP_TOKENS));
        ensure(tokens >= longest, || {
            let reason = "a step holds at least one text of the maximum length";
            let step: (_, &dyn std::fmt::Display) = ("max_num_batched_tokens", &tokens);
            ConfigError::conflict(step, ("max_model_len", &longest), reason)
        })?;
        Ok(Self {
            policy,
            prefix_cache: None,
            max_num_batched_tokens: Some(tokens),
            max_model_len: self.max_model_len.map(|len| len.saturating_add(1)),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::policy::rectangular::config::RectangularConfig;

    fn facts() -> Facts {
        Facts { max_model_len: 8193, slots: 32768, is_cpu: true, is_encoder: true, ..Facts::default() }
    }

    #[test]
    fn texts_run_whole_without_a_prefix_cache() {
        let resolved = EngineConfig::default().resolve(&facts()).unwrap();
        let limits = resolved.limits;
        assert_eq!((limits.max_model_len, limits.longest_prompt()), (8193, 8192));
        assert_eq!(limits.max_num_batched_tokens, 8192);
        assert!(limits.bidirectional && !limits.prefix_cache && !resolved.cache.sharing);
        assert!(matches!(resolved.policy, PolicyConfig::PrefillFirst { chunking: Chunking::Off, .. }));
        let shorter = EngineConfig { max_model_len: Some(100), ..EngineConfig::default() };
        let limits = shorter.resolve(&facts()).unwrap().limits;
        assert_eq!((limits.longest_prompt(), limits.max_num_batched_tokens), (100, 2048));
    }

    #[test]
    fn options_that_split_or_keep_texts_are_refused_by_name() {
        let error = |config: EngineConfig| config.resolve(&facts()).unwrap_err().to_string();
        let default = EngineConfig::default;
        let rectangular = PolicyConfig::Rectangular(RectangularConfig::default());
        assert!(error(EngineConfig { policy: rectangular, ..default() }).contains("policy rectangular"));
        assert!(error(EngineConfig { prefix_cache: Some(true), ..default() }).contains("prefix_cache on"));
        let few = EngineConfig { max_num_batched_tokens: Some(512), ..default() };
        assert!(error(few).contains("max_num_batched_tokens 512"));
    }
}

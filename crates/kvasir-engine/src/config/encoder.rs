//! Engine configuration for encoders: each text runs in one step, and its K/V is freed after that
//! step.
//!
//! Options that would split a text or retain K/V are refused by name. See decision 0053.

use crate::config::EngineConfig;
use crate::config::error::{ConfigError, ensure};
use crate::config::facts::Facts;
use crate::config::policy::PolicyConfig;
use crate::scheduler::policy::prefill_first::Chunking;

/// Lower bound of the default `max_num_batched_tokens`.
const MIN_DEFAULT_BATCHED_TOKENS: u32 = 2048;

impl EngineConfig {
    /// Applies the defaults of encoders, and refuses options that they do not support.
    /// `facts.max_model_len` is the length of the longest text plus one, as limits reserve a
    /// position for a generated token.
    pub(super) fn with_encoder_defaults(&self, facts: &Facts) -> Result<Self, ConfigError> {
        let refuse = |parameter, value: &dyn std::fmt::Display, reason: &str| {
            Err(ConfigError::invalid(parameter, value, format!("is not supported for encoders: {reason}")))
        };
        let policy = match self.policy {
            PolicyConfig::PrefillFirst { chunking: Chunking::On { cap: Some(cap) }, .. } => {
                return refuse("long_prefill_cap", &cap, "each text runs in one step");
            }
            PolicyConfig::PrefillFirst { delay_factor, .. } => {
                PolicyConfig::PrefillFirst { chunking: Chunking::Off, delay_factor }
            }
            PolicyConfig::Chunked { max_extend_tokens, .. }
                if max_extend_tokens != PolicyConfig::MAX_EXTEND_TOKENS =>
            {
                return refuse("max_extend_tokens", &max_extend_tokens, "each text runs in one step");
            }
            PolicyConfig::Chunked { .. } => {
                PolicyConfig::PrefillFirst { chunking: Chunking::Off, delay_factor: 0.0 }
            }
            PolicyConfig::Rectangular(_) => {
                return refuse("policy", &self.policy.build().name(), "each text runs in one step");
            }
        };
        if self.prefix_cache == Some(true) {
            return refuse("prefix_cache", &"on", "hidden states depend on later tokens");
        }
        if self.rings {
            return refuse("rings", &"on", "no K/V is retained");
        }
        let max_text_tokens = self.max_model_len.unwrap_or(facts.max_model_len.saturating_sub(1));
        let tokens = self.max_num_batched_tokens.unwrap_or(max_text_tokens.max(MIN_DEFAULT_BATCHED_TOKENS));
        ensure(tokens >= max_text_tokens, || {
            let reason = "a step must fit a text of the maximum length";
            let step: (_, &dyn std::fmt::Display) = ("max_num_batched_tokens", &tokens);
            ConfigError::conflict(step, ("max_model_len", &max_text_tokens), reason)
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
        Facts {
            max_model_len: 8193,
            max_default_capacity: Some(32768),
            is_cpu: true,
            is_encoder: true,
            ..Facts::default()
        }
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
    fn options_that_split_texts_or_retain_kv_are_refused() {
        let error = |config: EngineConfig| config.resolve(&facts()).unwrap_err().to_string();
        let default = EngineConfig::default;
        let rectangular = PolicyConfig::Rectangular(RectangularConfig::default());
        assert!(error(EngineConfig { policy: rectangular, ..default() }).contains("policy rectangular"));
        assert!(error(EngineConfig { prefix_cache: Some(true), ..default() }).contains("prefix_cache on"));
        let small_step = EngineConfig { max_num_batched_tokens: Some(512), ..default() };
        assert!(error(small_step).contains("max_num_batched_tokens 512"));
    }
}

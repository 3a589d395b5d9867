//! `PolicyConfig`: a scheduling policy with its parameters. A variant holds only the parameters of
//! its policy; `check` validates their combinations.

use crate::config::error::{ConfigError, checked_count, ensure};
use crate::scheduler::limits::Limits;
use crate::scheduler::policy::Policy;
use crate::scheduler::policy::chunked::{Chunked, Mixing};
use crate::scheduler::policy::prefill_first::{Chunking, PrefillFirst};
use crate::scheduler::policy::rectangular::{Rectangular, config::RectangularConfig};

/// A scheduling policy with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicyConfig {
    /// Waiting prompts before decodes, in separate steps.
    PrefillFirst {
        /// Whether prompts are split into chunks.
        chunking: Chunking,
        /// Admission waits until the oldest request has waited this many times the last prefill.
        delay_factor: f64,
    },
    /// Chunked prefill under a token budget.
    Chunked {
        /// Maximum prompt tokens of a step.
        max_extend_tokens: u32,
        /// Whether a step may mix prefill chunks and decodes.
        mixing: Mixing,
    },
    /// Steps of static shapes.
    Rectangular(RectangularConfig),
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self::Chunked { max_extend_tokens: Self::MAX_EXTEND_TOKENS, mixing: Mixing::Off }
    }
}

impl PolicyConfig {
    /// Default of `max_extend_tokens`.
    pub const MAX_EXTEND_TOKENS: u32 = 8192;

    /// Whether it is the rectangular policy.
    pub fn is_rectangular(&self) -> bool {
        matches!(self, Self::Rectangular(_))
    }

    /// Builds the policy.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            Self::PrefillFirst { chunking, delay_factor } => {
                Box::new(PrefillFirst::new(chunking, delay_factor))
            }
            Self::Chunked { max_extend_tokens, mixing } => Box::new(Chunked::new(max_extend_tokens, mixing)),
            Self::Rectangular(config) => Box::new(Rectangular::new(config)),
        }
    }

    /// Checks the parameters against each other, the block size and the limits of a step.
    pub(super) fn check(&self, block_size: u32, limits: &Limits) -> Result<(), ConfigError> {
        match *self {
            Self::PrefillFirst { chunking, delay_factor } => {
                if let Chunking::On { cap } = chunking {
                    checked_count("long_prefill_cap", cap, 1, u32::MAX)?;
                }
                ensure(delay_factor.is_finite() && delay_factor >= 0.0, || {
                    ConfigError::invalid("delay_factor", &delay_factor, "is not a number of at least 0")
                })
            }
            Self::Chunked { max_extend_tokens, .. } => {
                checked_count("max_extend_tokens", Some(max_extend_tokens), 1, u32::MAX).map(drop)
            }
            Self::Rectangular(config) => check_rectangular(&config, block_size, limits),
        }
    }
}

/// Checks a rectangular configuration against the block size and the limits.
fn check_rectangular(
    config: &RectangularConfig,
    block_size: u32,
    limits: &Limits,
) -> Result<(), ConfigError> {
    let RectangularConfig { chunk_size, max_batch, max_batch_tkv, .. } = *config;
    let (tokens, length) = (limits.max_num_batched_tokens, limits.max_model_len);
    let step = ("max_num_batched_tokens", &tokens as _);
    checked_count("chunk_size", Some(chunk_size), 1, u32::MAX)?;
    checked_count("max_batch", Some(max_batch), 1, u32::MAX)?;
    ensure(chunk_size.is_multiple_of(block_size), || {
        let reason = "a chunk must be a multiple of a block";
        ConfigError::conflict(("chunk_size", &chunk_size), ("block_size", &block_size), reason)
    })?;
    ensure(chunk_size <= tokens, || {
        ConfigError::conflict(("chunk_size", &chunk_size), step, "a chunk exceeds a step")
    })?;
    ensure(max_batch <= tokens, || {
        ConfigError::conflict(("max_batch", &max_batch), step, "a decode batch exceeds a step")
    })?;
    ensure(max_batch_tkv >= u64::from(length), || {
        let reason = "a sequence of maximum length exceeds the volume";
        ConfigError::conflict(("max_batch_tkv", &max_batch_tkv), ("max_model_len", &length), reason)
    })?;
    ensure(config.pausing || !config.long_output_first, || {
        let reason = "it orders paused sequences";
        ConfigError::conflict(("long_output_first", &"on"), ("pausing", &"off"), reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicting_parameters_are_refused_by_name() {
        let limits = Limits { max_num_batched_tokens: 1024, max_model_len: 4096, ..Limits::default() };
        let fails = |change: fn(&mut RectangularConfig)| {
            let mut config = RectangularConfig::default();
            change(&mut config);
            PolicyConfig::Rectangular(config).check(64, &limits).unwrap_err().to_string()
        };
        assert_eq!(PolicyConfig::Rectangular(RectangularConfig::default()).check(64, &limits), Ok(()));
        assert!(fails(|c| c.chunk_size = 100).contains("block_size 64"));
        assert!(fails(|c| c.chunk_size = 0).contains("chunk_size 0"));
        assert!(fails(|c| c.chunk_size = 2048).contains("max_num_batched_tokens 1024"));
        assert!(fails(|c| c.max_batch = 0).contains("max_batch 0"));
        assert!(fails(|c| c.max_batch_tkv = 4095).contains("max_model_len 4096"));
        assert!(fails(|c| c.long_output_first = true).contains("pausing off"));
    }
}

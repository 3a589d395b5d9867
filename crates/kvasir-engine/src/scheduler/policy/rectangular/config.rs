//! Configuration of the `rectangular` policy and its validation at start-up.

use crate::scheduler::limits::Limits;
use crate::scheduler::policy::rectangular::rules::Rules;
use serde::{Deserialize, Serialize};

/// Shape limits of a static-shape accelerator, and the scheduling rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RectangularConfig {
    /// `--chunk-size`: positions of a prefill step; a multiple of the block size.
    pub chunk_size: u32,
    /// `--max-batch`: most rows of a decode step.
    pub max_batch: u32,
    /// `--max-batch-tkv`: volume limit, an upper bound on rows times the largest tkv.
    pub max_batch_tkv: u64,
    /// `--interleave`: no two prefill steps in a row while a row decodes.
    pub interleave: bool,
    /// `--rules`: which rule set applies.
    pub rules: Rules,
    /// `--pausing`: admit without the volume test, and rotate decode rows when they do not all fit.
    pub pausing: bool,
    /// `--long-output-first`: among rows paused equally long, the one with the most decoded tokens
    /// goes first.
    pub long_output_first: bool,
}

impl Default for RectangularConfig {
    fn default() -> Self {
        Self {
            chunk_size: 512,
            max_batch: 32,
            max_batch_tkv: 131_072,
            interleave: true,
            rules: Rules::Document,
            pausing: false,
            long_output_first: false,
        }
    }
}

impl RectangularConfig {
    /// Validates the configuration at start-up. The error names both conflicting options.
    pub fn check(&self, block_size: u32, limits: &Limits) -> Result<(), String> {
        let rule = |holds: bool, why: String| if holds { Ok(()) } else { Err(why) };
        let Self { chunk_size: chunk, max_batch: batch, max_batch_tkv: volume, .. } = *self;
        let (tokens, length) = (limits.max_num_batched_tokens, limits.max_model_len);
        rule(
            chunk > 0 && block_size > 0 && chunk.is_multiple_of(block_size),
            format!("--chunk-size {chunk} is not a multiple of --block-size {block_size}"),
        )?;
        rule(batch > 0, "--max-batch must be at least 1".into())?;
        rule(chunk <= tokens, format!("--chunk-size {chunk} exceeds --max-num-batched-tokens {tokens}"))?;
        rule(batch <= tokens, format!("--max-batch {batch} exceeds --max-num-batched-tokens {tokens}"))?;
        rule(
            volume >= u64::from(length),
            format!("--max-batch-tkv {volume} is below --max-model-len {length}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicting_options_are_refused_by_name() {
        let limits = Limits { max_num_batched_tokens: 1024, max_model_len: 4096, ..Limits::default() };
        let fails = |change: fn(&mut RectangularConfig)| {
            let mut config = RectangularConfig::default();
            change(&mut config);
            config.check(64, &limits).unwrap_err()
        };
        assert_eq!(RectangularConfig::default().check(64, &limits), Ok(()));
        assert!(fails(|c| c.chunk_size = 100).contains("--block-size 64"));
        assert!(fails(|c| c.chunk_size = 0).contains("--chunk-size 0"));
        assert!(fails(|c| c.chunk_size = 2048).contains("--max-num-batched-tokens 1024"));
        assert!(fails(|c| c.max_batch = 0).contains("--max-batch"));
        assert!(fails(|c| c.max_batch_tkv = 4095).contains("--max-model-len 4096"));
    }
}

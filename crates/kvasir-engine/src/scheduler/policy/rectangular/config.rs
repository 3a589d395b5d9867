//! Configuration of the `rectangular` policy.

use crate::scheduler::policy::rectangular::rules::Rules;
use serde::{Deserialize, Serialize};

/// Shape limits of a static-shape accelerator, and the scheduling rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RectangularConfig {
    /// Positions of a prefill step; a multiple of the block size.
    pub chunk_size: u32,
    /// Most rows of a decode step.
    pub max_batch: u32,
    /// Volume limit, an upper bound on rows times the largest tkv.
    pub max_batch_tkv: u64,
    /// No two prefill steps in a row while a row decodes.
    pub interleave: bool,
    /// Which rule set applies.
    pub rules: Rules,
    /// Admit without the volume test, and rotate decode rows when they do not all fit.
    pub pausing: bool,
    /// Among rows paused equally long, the one with the most decoded tokens goes first; needs
    /// `pausing`.
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

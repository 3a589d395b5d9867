//! Policy-specific options: validation and construction of scheduling policies.

use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::rules::{positive, rule};
use crate::options::switch::Switch;
use kvasir_engine::{
    Chunked, Chunking, Mixing, Policy, PrefillFirst, Rectangular, RectangularConfig, StepTarget,
};
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// `--policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PolicyKind {
    PrefillFirst,
    Chunked,
    Rectangular,
}

impl Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PrefillFirst => "prefill-first",
            Self::Chunked => "chunked",
            Self::Rectangular => "rectangular",
        })
    }
}

impl Options {
    /// Rejects options of other policies.
    pub(super) fn check_policy(&self, policy: PolicyKind) -> Result<(), Failure> {
        use PolicyKind::{Chunked, PrefillFirst, Rectangular};
        let given = [
            ("delay-factor", self.delay_factor.is_some(), PrefillFirst),
            ("chunked-prefill", self.chunked_prefill.is_some(), PrefillFirst),
            ("long-prefill-cap", self.long_prefill_cap.is_some(), PrefillFirst),
            ("max-extend-tokens", self.max_extend_tokens.is_some(), Chunked),
            ("mixed", self.mixed.is_some(), Chunked),
            ("step-target-ms", self.step_target_ms.is_some(), Chunked),
            ("step-target-times", self.step_target_times.is_some(), Chunked),
            ("chunk-size", self.chunk_size.is_some(), Rectangular),
            ("interleave", self.interleave.is_some(), Rectangular),
            ("max-batch-tkv", self.max_batch_tkv.is_some(), Rectangular),
            ("max-batch", self.max_batch.is_some(), Rectangular),
            ("rules", self.rules.is_some(), Rectangular),
            ("pausing", self.pausing.is_some(), Rectangular),
            ("long-output-first", self.long_output_first.is_some(), Rectangular),
        ];
        for (name, is_given, owner) in given {
            rule(!is_given || owner == policy, || {
                format!("--{name} belongs to --policy {owner} and cannot be combined with --policy {policy}")
            })?;
        }
        let needs_pausing = self.long_output_first.is_some_and(Switch::is_on);
        rule(!needs_pausing || self.pausing.is_some_and(Switch::is_on), || {
            "--long-output-first on needs --pausing on".into()
        })
    }

    pub(super) fn rectangular(&self) -> RectangularConfig {
        let standard = RectangularConfig::default();
        RectangularConfig {
            chunk_size: self.chunk_size.unwrap_or(standard.chunk_size),
            max_batch: self.max_batch.unwrap_or(standard.max_batch),
            max_batch_tkv: self.max_batch_tkv.unwrap_or(standard.max_batch_tkv),
            interleave: self.interleave.is_none_or(Switch::is_on),
            rules: self.rules.unwrap_or(standard.rules),
            pausing: self.pausing.is_some_and(Switch::is_on),
            long_output_first: self.long_output_first.is_some_and(Switch::is_on),
        }
    }

    fn step_target(&self) -> Result<Option<StepTarget>, Failure> {
        let (ms, times) = (self.step_target_ms, self.step_target_times);
        rule(ms.is_none() || times.is_none(), || {
            "--step-target-ms cannot be combined with --step-target-times".into()
        })?;
        rule(ms.is_none_or(|ms| ms > 0.0 && ms < 1e9), || "--step-target-ms must be above 0".into())?;
        rule(times.is_none_or(|times| (1.0..=1000.0).contains(&times)), || {
            "--step-target-times must be 1 to 1000".into()
        })?;
        let time = ms.map(|ms| StepTarget::Time((ms * 1e6) as u64));
        Ok(time.or(times.map(|times| StepTarget::Percent((times * 100.0) as u32))))
    }

    pub(super) fn build_policy(
        &self,
        kind: PolicyKind,
        rectangular: RectangularConfig,
    ) -> Result<Box<dyn Policy>, Failure> {
        Ok(match kind {
            PolicyKind::PrefillFirst => {
                let delay = self.delay_factor.unwrap_or(0.0);
                rule(delay.is_finite() && delay >= 0.0, || format!("--delay-factor {delay} is below 0"))?;
                let chunked = self.chunked_prefill.is_none_or(Switch::is_on);
                rule(chunked || self.long_prefill_cap.is_none(), || {
                    "--long-prefill-cap cannot be combined with --chunked-prefill off".into()
                })?;
                rule(self.long_prefill_cap != Some(0), || "--long-prefill-cap must be at least 1".into())?;
                let chunking = match chunked {
                    true => Chunking::On { cap: self.long_prefill_cap },
                    false => Chunking::Off,
                };
                Box::new(PrefillFirst::new(chunking, delay))
            }
            PolicyKind::Chunked => {
                let mixed = self.mixed.is_some_and(Switch::is_on);
                let mixing = match mixed {
                    true => Mixing::On { target: self.step_target()? },
                    false => {
                        rule(self.step_target_ms.is_none(), || "--step-target-ms needs --mixed on".into())?;
                        rule(self.step_target_times.is_none(), || {
                            "--step-target-times needs --mixed on".into()
                        })?;
                        Mixing::Off
                    }
                };
                Box::new(Chunked::new(positive("max-extend-tokens", self.max_extend_tokens, 8192)?, mixing))
            }
            PolicyKind::Rectangular => Box::new(Rectangular::new(rectangular)),
        })
    }
}

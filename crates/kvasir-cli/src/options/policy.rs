//! Policy-specific options: which policy each belongs to, and their values as a `PolicyConfig`.

use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::rules::rule;
use crate::options::switch::Switch;
use kvasir_engine::{Chunking, Mixing, PolicyConfig, RectangularConfig, StepTarget};
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
    fn check_policy(&self, policy: PolicyKind) -> Result<(), Failure> {
        use PolicyKind::{Chunked, PrefillFirst, Rectangular};
        let given = [
            ("delay-factor", self.batching.delay_factor.is_some(), PrefillFirst),
            ("chunked-prefill", self.sequence.chunked_prefill.is_some(), PrefillFirst),
            ("long-prefill-cap", self.sequence.long_prefill_cap.is_some(), PrefillFirst),
            ("max-extend-tokens", self.sequence.max_extend_tokens.is_some(), Chunked),
            ("mixed", self.batching.mixed.is_some(), Chunked),
            ("step-target-ms", self.batching.step_target_ms.is_some(), Chunked),
            ("step-target-times", self.batching.step_target_times.is_some(), Chunked),
            ("chunk-size", self.sequence.chunk_size.is_some(), Rectangular),
            ("interleave", self.batching.interleave.is_some(), Rectangular),
            ("max-batch-tkv", self.sequence.max_batch_tkv.is_some(), Rectangular),
            ("max-batch", self.batching.max_batch.is_some(), Rectangular),
            ("rules", self.sequence.rules.is_some(), Rectangular),
            ("pausing", self.batching.pausing.is_some(), Rectangular),
            ("long-output-first", self.batching.long_output_first.is_some(), Rectangular),
        ];
        for (name, is_given, owner) in given {
            rule(!is_given || owner == policy, || {
                format!("--{name} belongs to --policy {owner} and cannot be combined with --policy {policy}")
            })?;
        }
        Ok(())
    }

    fn step_target(&self) -> Result<Option<StepTarget>, Failure> {
        let (ms, times) = (self.batching.step_target_ms, self.batching.step_target_times);
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

    /// The policy with the parameters that its options set.
    pub(super) fn policy_config(&self) -> Result<PolicyConfig, Failure> {
        let kind = self.sequence.policy.unwrap_or(PolicyKind::Chunked);
        self.check_policy(kind)?;
        Ok(match kind {
            PolicyKind::PrefillFirst => {
                let (chunked, cap) =
                    (self.sequence.chunked_prefill.is_none_or(Switch::is_on), self.sequence.long_prefill_cap);
                rule(chunked || cap.is_none(), || {
                    "--long-prefill-cap cannot be combined with --chunked-prefill off".into()
                })?;
                let chunking = if chunked { Chunking::On { cap } } else { Chunking::Off };
                PolicyConfig::PrefillFirst {
                    chunking,
                    delay_factor: self.batching.delay_factor.unwrap_or(0.0),
                }
            }
            PolicyKind::Chunked => {
                let target = self.step_target()?;
                let mixed = self.batching.mixed.is_some_and(Switch::is_on);
                rule(mixed || self.batching.step_target_ms.is_none(), || {
                    "--step-target-ms needs --mixed on".into()
                })?;
                rule(mixed || self.batching.step_target_times.is_none(), || {
                    "--step-target-times needs --mixed on".into()
                })?;
                PolicyConfig::Chunked {
                    max_extend_tokens: self
                        .sequence
                        .max_extend_tokens
                        .unwrap_or(PolicyConfig::MAX_EXTEND_TOKENS),
                    mixing: if mixed { Mixing::On { target } } else { Mixing::Off },
                }
            }
            PolicyKind::Rectangular => {
                let standard = RectangularConfig::default();
                PolicyConfig::Rectangular(RectangularConfig {
                    chunk_size: self.sequence.chunk_size.unwrap_or(standard.chunk_size),
                    max_batch: self.batching.max_batch.unwrap_or(standard.max_batch),
                    max_batch_tkv: self.sequence.max_batch_tkv.unwrap_or(standard.max_batch_tkv),
                    interleave: self.batching.interleave.map_or(standard.interleave, Switch::is_on),
                    rules: self.sequence.rules.unwrap_or(standard.rules),
                    pausing: self.batching.pausing.map_or(standard.pausing, Switch::is_on),
                    long_output_first: self
                        .batching
                        .long_output_first
                        .map_or(standard.long_output_first, Switch::is_on),
                })
            }
        })
    }
}

//! Mirostat 1 and 2 (Basu et al., 2021): truncates ids by their surprise `-log2 p`, and controls
//! the bound `mu` so that the surprise of sampled tokens approaches a target `tau`.
//!
//! `mu = 2 * tau` initially, and `mu = mu - eta * (surprise - tau)` after each token, with the
//! surprise under the truncated distribution. Mirostat 2 removes ids whose surprise exceeds `mu`.
//! Mirostat 1 estimates Zipf's exponent from the 100 most likely ids, computes `k` from it and
//! `mu`, and applies top-k.
//!
//! Invariant: `mu` of an output position is a function of the tokens before it. [`MirostatState`]
//! keeps it by output index, so a repeated step reads and writes the same values. A sequence with
//! Mirostat has no drafts, because nodes of a draft tree share an output index.
//! Guarded by `tests/llama_cpp_samplers.rs`.

use crate::processors::{self, Total};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of most likely ids from which Zipf's exponent is estimated.
const ZIPF_SAMPLES: usize = 100;

/// How Mirostat truncates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MirostatVersion {
    /// Top-k with an estimated `k`.
    V1,
    /// Truncation by surprise.
    #[default]
    V2,
}

/// Parameters of Mirostat.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mirostat {
    /// How it truncates.
    pub version: MirostatVersion,
    /// Target surprise in bits.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Self { version: MirostatVersion::default(), tau: 5.0, eta: 0.1 }
    }
}

impl Mirostat {
    /// The initial `mu`, for the first token.
    pub fn first_mu(&self) -> f32 {
        2.0 * self.tau
    }

    /// Removes the ids beyond the bound `mu`; keeps at least the most likely id.
    pub fn truncate(&self, logits: &mut [f32], mu: f32) {
        match self.version {
            MirostatVersion::V1 => {
                let k = estimated_k(logits, mu);
                processors::top_k(logits, k);
            }
            MirostatVersion::V2 => {
                let total = Total::of(logits);
                let is_surprising = |logit: f32| -total.probability(logit).log2() > f64::from(mu);
                if is_surprising(total.largest) {
                    processors::top_k(logits, 1);
                } else {
                    let surprising = logits.iter_mut().filter(|logit| is_surprising(**logit));
                    surprising.for_each(|logit| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }

    /// The updated `mu` after `drawn` was sampled from the truncated `logits`.
    pub fn next_mu(&self, logits: &[f32], drawn: u32, mu: f32) -> f32 {
        let Some(logit) = logits.get(drawn as usize).filter(|logit| **logit > f32::NEG_INFINITY) else {
            return mu;
        };
        let surprise = -Total::of(logits).probability(*logit).log2() as f32;
        mu - self.eta * (surprise - self.tau)
    }
}

/// Mirostat 1's `k`, from the estimated exponent of Zipf's law and `mu`; at least 1.
fn estimated_k(logits: &[f32], mu: f32) -> usize {
    let mut sorted: Vec<f32> = logits.iter().copied().filter(|logit| *logit > f32::NEG_INFINITY).collect();
    if sorted.len() > ZIPF_SAMPLES {
        sorted.select_nth_unstable_by(ZIPF_SAMPLES - 1, |a, b| b.total_cmp(a));
        sorted.truncate(ZIPF_SAMPLES);
    }
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let (mut products, mut squares) = (0.0, 0.0);
    for (i, pair) in sorted.windows(2).enumerate() {
        let t = ((i + 2) as f32 / (i + 1) as f32).ln();
        products += t * (pair[0] - pair[1]);
        squares += t * t;
    }
    let exponent = products / squares;
    let epsilon = exponent - 1.0;
    let vocab = logits.len() as f32;
    let k = (epsilon * 2f32.powf(mu) / (1.0 - vocab.powf(-epsilon))).powf(1.0 / exponent);
    // The cast maps NaN, as from a single candidate, to 0.
    (k as usize).max(1)
}

/// `mu` of one sequence by output index. It is kept across preemptions: recomputed outputs are not
/// sampled again, so their logits are gone. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MirostatState(Arc<Mutex<Vec<f32>>>);

impl MirostatState {
    /// Restores the state after `outputs` outputs, with this value of `mu`.
    pub fn resume(&self, outputs: usize, mu: f32) {
        let mut after = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        after.clear();
        after.resize(outputs, mu);
    }

    /// `mu` after the first `outputs` outputs; `None` if it was never set.
    pub fn after(&self, outputs: usize) -> Option<f32> {
        let after = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        after.get(outputs.checked_sub(1)?).copied()
    }

    /// `mu` for the output with this index; `first` for the first output.
    pub(crate) fn mu(&self, index: usize, first: f32) -> f32 {
        let after = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = index.checked_sub(1).and_then(|earlier| after.get(earlier).or(after.last()));
        earlier.copied().unwrap_or(first)
    }

    /// Sets `mu` after the output with this index, and drops later values.
    pub(crate) fn set(&self, index: usize, mu: f32) {
        let mut after = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        after.truncate(index);
        // Earlier outputs that were not sampled here have no value: fill in the new one.
        after.resize(index, mu);
        after.push(mu);
    }
}

impl PartialEq for MirostatState {
    /// Whether both are clones of one state.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

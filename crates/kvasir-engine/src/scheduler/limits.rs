//! Scheduler limits (`max_num_seqs`, `max_num_batched_tokens`, `max_model_len`, …) and the cost
//! model of a step that policies use to bound latency.

use crate::request::timings::Nanos;
use kvasir_exec::Abilities;
use serde::{Deserialize, Serialize};

/// Scheduler limits; no step or queue exceeds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most running sequences.
    pub max_num_seqs: u32,
    /// Most tokens in one step, prefill and decode together.
    pub max_num_batched_tokens: u32,
    /// Context length: most tokens of prompt and outputs together.
    pub max_model_len: u32,
    /// Longest prompt; none means `max_model_len - 1`. Set by replays of recorded cases only.
    pub max_prompt: Option<u32>,
    /// Most waiting requests; more are refused (backpressure).
    pub max_waiting: u32,
    /// KV slots that admission keeps free while a sequence runs, in thousandths of the capacity.
    pub watermark: u32,
    /// Automatic prefix caching: prompts reuse K/V of earlier requests.
    pub prefix_cache: bool,
    /// Whether attention is bidirectional (encoders): every sequence runs in one step, without
    /// causal masks.
    pub bidirectional: bool,
    /// Maximum running sequences with a recurrent state, in addition to the limit of the cache;
    /// `None` is unbounded. Only replays of recorded cases set it.
    pub state_slots: Option<u32>,
    /// Most rows of a decode step that is padded to a declared batch size, or runs as a captured graph.
    pub graph_max_batch: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_num_seqs: 512,
            max_num_batched_tokens: 16384,
            max_model_len: 4096,
            max_prompt: None,
            max_waiting: 1 << 20,
            watermark: 0,
            prefix_cache: true,
            bidirectional: false,
            state_slots: None,
            graph_max_batch: 256,
        }
    }
}

impl Limits {
    /// Longest prompt accepted, in tokens.
    pub fn longest_prompt(&self) -> u32 {
        self.max_prompt.unwrap_or(self.max_model_len.saturating_sub(1))
    }

    /// Most rows of a decode step whose rows feed `tokens` each: the batch size to prepare for.
    pub fn decode_bound(&self, tokens: u32) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens / tokens.max(1))
    }

    /// Clamps the limits to an executor's abilities.
    pub fn within(mut self, abilities: &Abilities) -> Self {
        self.max_num_seqs = self.max_num_seqs.min(abilities.pool_rows);
        self.max_num_batched_tokens = self.max_num_batched_tokens.min(abilities.max_tokens);
        self
    }
}

/// Measured step costs. A policy reads no clock; costs are handed in and recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Nanoseconds of a step with one decode row.
    pub step_ns: u64,
    /// Nanoseconds that each further decode row adds.
    pub row_ns: u64,
    /// Nanoseconds of a prefill token at position 0.
    pub token_ns: u64,
    /// Additional nanoseconds per prefill token for every 1,000 positions before it.
    pub depth_ns: u64,
    /// Nanoseconds of the last step that ran prompts only.
    pub prefill_ns: u64,
}

impl Costs {
    /// Nanoseconds of a prefill token at position `at`, and the increase per further position.
    fn token(&self, at: u32) -> (f64, f64) {
        let grow = self.depth_ns as f64 / 1000.0;
        (self.token_ns as f64 + grow * f64::from(at), grow)
    }

    /// `n * first + n² * grow / 2`: predicted time of a prefill chunk of `tokens` from position
    /// `at`.
    pub fn tokens_take(&self, tokens: u32, at: u32) -> Nanos {
        let ((first, grow), n) = (self.token(at), f64::from(tokens));
        (n * first + n * n * grow / 2.0) as Nanos
    }

    /// Inverse of `tokens_take`: the largest prefill chunk from position `at` that fits into
    /// `time`; none while costs are unknown.
    pub fn tokens_in(&self, time: Nanos, at: u32) -> Option<u32> {
        let ((first, grow), time) = (self.token(at), time as f64);
        (self.token_ns > 0 || self.depth_ns > 0).then(|| {
            let root = (first * first + 2.0 * grow * time).sqrt();
            (2.0 * time / (first + root)) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_in_inverts_tokens_take() {
        let costs = Costs { token_ns: 600, depth_ns: 270, ..Costs::default() };
        for (time, at) in [(0, 0), (599, 0), (100_000, 0), (100_000, 4000), (9_000_000, 123)] {
            let n = costs.tokens_in(time, at).unwrap();
            assert!(costs.tokens_take(n, at) <= time && costs.tokens_take(n + 1, at) > time, "{n} in {time}");
        }
        assert_eq!(costs.tokens_take(1000, 4000), 600_000 + 4 * 270_000 + 135_000);
        let flat = Costs { token_ns: 7, ..Costs::default() };
        assert_eq!(flat.tokens_in(71, 1 << 20), Some(10));
        assert_eq!(Costs { depth_ns: 1000, ..Costs::default() }.tokens_in(0, 0), Some(0));
        assert_eq!(Costs::default().tokens_in(70, 3), None);
    }

    #[test]
    fn decode_bound_respects_sequences_and_token_budget() {
        let bound = |seqs, budget, tokens| {
            Limits { max_num_seqs: seqs, max_num_batched_tokens: budget, ..Limits::default() }
                .decode_bound(tokens)
        };
        let got = [
            bound(256, 16384, 4),
            bound(256, 512, 4),
            bound(256, 512, 1),
            bound(256, 2, 4),
            bound(1024, 512, 8),
        ];
        assert_eq!(got, [256, 128, 256, 0, 64]);
    }
}

//! Prefill coalescing for data-parallel replicas: defers new prompts so that all replicas run
//! prefill in the same step.
//!
//! Prefill is allowed when every replica has enough pending prompt tokens, or the wait has stalled.
//! It is forced when nothing decodes, KV usage leaves its band, or a timeout in ticks or
//! milliseconds expires. Pure logic over counters: no clock, no IO.

use serde::{Deserialize, Serialize};

/// Thresholds of prefill coalescing. A tick is one call of `Coalescer::allows`, one per step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Coalescing {
    /// Token budget of one step.
    pub max_num_batched_tokens: u64,
    /// Fraction of a step's tokens that must be pending on every replica.
    pub target_fill: f64,
    /// Ticks after which prefill runs regardless.
    pub ttft_max_ticks: u32,
    /// Ticks after which prefill runs if a chunked prompt is in progress.
    pub partial_max_ticks: u32,
    /// Ticks without growth of pending tokens after which the fill target is waived.
    pub stall_ticks: u32,
    /// KV usage, as a fraction, above which nothing is deferred.
    pub kv_high: f64,
    /// KV usage, as a fraction, below which nothing is deferred.
    pub kv_low: Option<f64>,
    /// Age of the oldest waiting request, in milliseconds, above which nothing is deferred.
    pub max_queue_ms: Option<f64>,
}

impl Default for Coalescing {
    fn default() -> Self {
        Self {
            max_num_batched_tokens: 16384,
            target_fill: 0.7,
            ttft_max_ticks: 30,
            partial_max_ticks: 8,
            stall_ticks: 3,
            kv_high: 0.9,
            kv_low: None,
            max_queue_ms: None,
        }
    }
}

/// State reported by one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplicaState {
    /// It has prompts that can run now.
    pub prefillable: bool,
    /// Prompt tokens waiting.
    pub pending_tokens: u64,
    /// Decoding sequences.
    pub running_decode: u64,
}

/// Additional local state of the deciding replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalState {
    /// KV usage as a fraction.
    pub kv_usage: f64,
    /// A chunked prompt is in progress.
    pub has_partial: bool,
    /// Age of its oldest waiting request, in milliseconds.
    pub oldest_age_ms: f64,
}

/// Decides before each step whether prefill may run.
#[derive(Clone, Debug)]
pub struct Coalescer {
    rules: Coalescing,
    ticks_deferred: u32,
    stalled: u32,
    last_pending: Option<u64>,
    first: bool,
}

impl Coalescer {
    /// A coalescer without history; its first call always allows.
    pub fn new(rules: Coalescing) -> Self {
        Self { rules, ticks_deferred: 0, stalled: 0, last_pending: None, first: true }
    }

    /// Whether prefill may run now. `replicas` lists all replicas, this one first. Advances the
    /// tick counters.
    pub fn allows(&mut self, replicas: &[ReplicaState], local: LocalState) -> bool {
        let first = std::mem::replace(&mut self.first, false);
        let pending = replicas.first().map_or(0, |replica| replica.pending_tokens);
        let all_prefillable = replicas.iter().all(|replica| replica.prefillable);
        let grew = self.last_pending.is_none_or(|last| pending > last);
        self.stalled = if grew { 0 } else { self.stalled + 1 };
        let allowed = first || self.is_forced(replicas, local) || (all_prefillable && self.is_full(replicas));
        if allowed {
            (self.ticks_deferred, self.stalled, self.last_pending) = (0, 0, None)
        } else {
            (self.ticks_deferred, self.last_pending) = (self.ticks_deferred + 1, Some(pending))
        }
        allowed
    }

    /// Whether prefill is forced: nothing to overlap with, KV usage outside its band, or a timeout.
    fn is_forced(&self, replicas: &[ReplicaState], local: LocalState) -> bool {
        let rules = &self.rules;
        !replicas.iter().any(|replica| replica.prefillable)
            || !replicas.iter().any(|replica| replica.running_decode > 0)
            || local.kv_usage > rules.kv_high
            || rules.kv_low.is_some_and(|low| local.kv_usage < low)
            || rules.max_queue_ms.is_some_and(|most| local.oldest_age_ms > most)
            || self.ticks_deferred >= rules.ttft_max_ticks
            || (local.has_partial && self.ticks_deferred >= rules.partial_max_ticks)
    }

    /// Whether every replica has enough pending tokens, or waiting no longer adds any.
    fn is_full(&self, replicas: &[ReplicaState]) -> bool {
        let target = (self.rules.target_fill * self.rules.max_num_batched_tokens as f64).ceil() as u64;
        replicas.iter().all(|replica| replica.pending_tokens >= target)
            || self.stalled >= self.rules.stall_ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(pending_tokens: u64) -> ReplicaState {
        ReplicaState { prefillable: true, pending_tokens, running_decode: 8 }
    }

    #[test]
    fn prefill_waits_until_every_replica_has_enough() {
        let mut coalescer =
            Coalescer::new(Coalescing { max_num_batched_tokens: 100, ..Coalescing::default() });
        let local = LocalState { kv_usage: 0.5, ..LocalState::default() };
        assert!(coalescer.allows(&[busy(10), busy(10)], local), "the first call always goes");
        assert!(!coalescer.allows(&[busy(70), busy(10)], local));
        assert!(coalescer.allows(&[busy(71), busy(70)], local));
    }

    #[test]
    fn partial_prompt_waits_less() {
        let mut coalescer =
            Coalescer::new(Coalescing { partial_max_ticks: 2, stall_ticks: 99, ..Coalescing::default() });
        let local = LocalState { kv_usage: 0.5, has_partial: true, ..LocalState::default() };
        let got: Vec<bool> = (0..4).map(|_| coalescer.allows(&[busy(1)], local)).collect();
        assert_eq!(got, [true, false, false, true]);
    }
}

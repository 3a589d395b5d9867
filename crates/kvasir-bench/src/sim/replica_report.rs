//! `ReplicaReport`: requests, tokens, hit rate and utilization of one replica.

use crate::sim::figures::grouped;
use serde::Serialize;

/// Results of one of several replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReplicaReport {
    /// Requests that ended on it.
    pub requests: u64,
    /// Prompt tokens of its admitted requests.
    pub prompt_tokens: u64,
    /// Prompt tokens served from its prefix cache.
    pub cached_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Device utilization: busy time over simulated time.
    pub device_busy: f64,
    /// Whether its device was lost.
    pub lost: bool,
}

impl ReplicaReport {
    /// One line of text: requests, output tokens, hit rate and device utilization.
    pub fn line(&self) -> String {
        let hits =
            if self.prompt_tokens > 0 { self.cached_tokens as f64 / self.prompt_tokens as f64 } else { 0.0 };
        let (requests, outputs) = (grouped(self.requests), grouped(self.output_tokens));
        let lost = if self.lost { ", lost" } else { "" };
        let (hits, busy) = (hits * 100.0, self.device_busy * 100.0);
        format!(
            "{requests} requests, {outputs} output tokens, {hits:.1} % found in the cache, {busy:.1} % busy{lost}"
        )
    }
}

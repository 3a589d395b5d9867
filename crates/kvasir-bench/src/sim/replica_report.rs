//! `ReplicaReport`: requests, tokens, hit rate, utilization, failures and transfers of one replica.

use crate::sim::figures::grouped;
use crate::sim::time_breakdown::TimeBreakdown;
use kvasir_engine::Role;
use serde::Serialize;

/// Results of one of several replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReplicaReport {
    /// Its role.
    pub role: Role,
    /// Requests that ended on it.
    pub requests: u64,
    /// Requests that it has prefilled and handed off to a decode replica.
    pub handed_off: u64,
    /// Prompt tokens of the admitted requests that ended on it or that it handed off.
    pub prompt_tokens: u64,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: u64,
    /// Output tokens of the requests that ended on it.
    pub output_tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Device utilization: busy time over simulated time.
    pub device_busy: f64,
    /// Whether its device was lost.
    pub lost: bool,
    /// Number of its failures.
    pub failures: u32,
    /// Nanoseconds from its failures to the ends of the restarts.
    #[serde(skip)]
    pub(crate) restart_ns: u64,
    /// Prompt tokens whose K and V were sent or received.
    pub transfers: TransferredTokens,
    /// Its time by cause, in seconds.
    pub time: TimeBreakdown,
}

/// Prompt tokens of the K/V transfers of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransferredTokens {
    /// Sent.
    pub sent_tokens: u64,
    /// Not sent: the send buffer was full, or no decode replica was available.
    pub unsent_tokens: u64,
    /// Received and stored.
    pub received_tokens: u64,
    /// Received and refused: the blocks before them had not arrived, or the pool had no free slots.
    pub refused_tokens: u64,
    /// Sent to it but not received: the sender or this replica failed.
    pub lost_tokens: u64,
}

impl ReplicaReport {
    /// One line of text: requests, output tokens, hit rate and device utilization.
    pub fn line(&self) -> String {
        let hits =
            if self.prompt_tokens > 0 { self.cached_tokens as f64 / self.prompt_tokens as f64 } else { 0.0 };
        let (requests, outputs) = (grouped(self.requests), grouped(self.output_tokens));
        let lost = if self.lost { ", lost" } else { "" };
        let (hits, busy) = (hits * 100.0, self.device_busy * 100.0);
        let mut line = format!(
            "{requests} requests, {outputs} output tokens, {hits:.1} % found in the cache, {busy:.1} % busy{lost}"
        );
        let TransferredTokens { sent_tokens, received_tokens, .. } = self.transfers;
        for (count, what) in [
            (self.handed_off, "handed off"),
            (sent_tokens, "tokens sent"),
            (received_tokens, "tokens received"),
            (self.failures.into(), "failures"),
        ] {
            if count > 0 {
                line.push_str(&format!(", {} {what}", grouped(count)));
            }
        }
        if self.role == Role::Both { line } else { format!("{}: {line}", self.role) }
    }
}

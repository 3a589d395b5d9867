//! `ReplicaLinks`: K/V transfers over the links between replicas, in simulated time.
//!
//! Each replica sends one transfer at a time and receives one at a time. A transfer begins when
//! sender and receiver are free. The send buffer of a replica is bounded: blocks that do not fit
//! are not sent, and the receiver computes them.

use crate::sim::failures::nanos;
use kvasir_engine::Nanos;
use kvasir_sim::Link;

/// Capacity of a replica's send buffer: bytes that wait or are being sent.
const SEND_BUFFER_BYTES: f64 = (4u64 << 30) as f64;

/// The times at which each replica's link is free to send and to receive.
#[derive(Debug)]
pub(crate) struct ReplicaLinks {
    link: Link,
    /// Bytes of K and V per token.
    token_bytes: f64,
    /// Links per replica: each rank sends its shard over its own.
    links_per_replica: f64,
    sends_until: Vec<Nanos>,
    receives_until: Vec<Nanos>,
}

impl ReplicaLinks {
    pub(crate) fn new(link: Link, token_bytes: f64, ranks: u32, replicas: usize) -> Self {
        let links_per_replica = f64::from(ranks.max(1));
        Self {
            link,
            token_bytes,
            links_per_replica,
            sends_until: vec![0; replicas],
            receives_until: vec![0; replicas],
        }
    }

    /// Bytes of the K and V of `tokens`.
    pub(crate) fn bytes(&self, tokens: u32) -> u64 {
        (f64::from(tokens) * self.token_bytes) as u64
    }

    /// Nanoseconds until the first byte of a transfer arrives.
    pub(crate) fn latency(&self) -> Nanos {
        nanos(self.link.latency.value)
    }

    /// Sends the K and V of `tokens` at `now`. Returns the time of arrival, or `None` if the send
    /// buffer is full.
    pub(crate) fn send(&mut self, now: Nanos, from: usize, to: usize, tokens: u32) -> Option<Nanos> {
        let bytes = f64::from(tokens) * self.token_bytes;
        let backlog = self.sends_until[from].saturating_sub(now) as f64 / 1e9;
        let buffered = backlog * self.link.bandwidth.value * self.links_per_replica;
        // Links of infinite bandwidth have no backlog: 0 * inf is not a number.
        if !buffered.is_nan() && buffered > 0.0 && buffered + bytes > SEND_BUFFER_BYTES {
            return None;
        }
        let start = now.max(self.sends_until[from]).max(self.receives_until[to]);
        let end = start + nanos(self.link.transfer(bytes / self.links_per_replica));
        self.sends_until[from] = end;
        self.receives_until[to] = end;
        Some(end + self.latency())
    }

    /// Frees the link of a replica that has failed. Its peers stay busy until their transfers with
    /// it would have ended.
    pub(crate) fn reset(&mut self, replica: usize) {
        self.sends_until[replica] = 0;
        self.receives_until[replica] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_wait_for_sender_and_receiver_and_fill_the_send_buffer() {
        // 1 GB/s, 1 ms latency, 1 MB per token.
        let mut links = ReplicaLinks::new(Link::given(1e9, 1e-3), 1e6, 1, 3);
        let ms = 1_000_000;
        assert_eq!(links.send(0, 0, 2, 10), Some(11 * ms));
        assert_eq!(links.send(0, 1, 2, 10), Some(21 * ms), "the receiver is busy");
        assert_eq!(links.send(5 * ms, 1, 0, 10), Some(31 * ms), "the sender is busy");
        assert_eq!(links.send(5 * ms, 1, 0, 4300), None, "the buffer is full");
        assert_eq!(links.send(40 * ms, 1, 0, 5000), Some(5041 * ms), "one transfer may exceed the buffer");
        let mut wide = ReplicaLinks::new(Link::given(1e9, 0.0), 1e6, 4, 2);
        assert_eq!(wide.send(0, 0, 1, 8), Some(2 * ms));
        let mut instant = ReplicaLinks::new(Link::given(f64::INFINITY, 0.0), 1e6, 1, 2);
        assert_eq!((instant.send(7, 0, 1, 8), instant.send(7, 0, 1, 8)), (Some(7), Some(7)));
    }
}

//! Limits of the engines and addresses of their ZMQ streams, as external routers read them.

use kvasir_engine::Route;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Configuration of the engines.
#[derive(Clone, Debug, Default)]
pub struct RankConfig {
    /// Maximum number of running sequences of an engine.
    pub max_num_seqs: u32,
    /// Maximum number of tokens in a step of an engine.
    pub max_num_batched_tokens: u32,
    /// Routing policy; `None` with one engine.
    pub route: Option<Route>,
    /// Addresses of streams.
    pub streams: PublishedStreams,
}

/// Addresses of the engines' ZMQ streams, by rank; empty if a stream is disabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedStreams {
    /// Topic (first frame) of KV event messages.
    pub topic: String,
    /// KV event streams.
    pub events: Vec<SocketAddr>,
    /// Replay sockets of the KV event streams.
    pub replays: Vec<SocketAddr>,
    /// Maximum number of batches in a stream's replay buffer.
    pub kept_batches: usize,
    /// Load streams.
    pub loads: Vec<SocketAddr>,
}

/// Topic (first frame) of load messages.
pub(crate) const LOAD_TOPIC: &str = "load";

impl PublishedStreams {
    /// SGLang's descriptor of the publisher; `null` without KV events, or if the ports of the ranks
    /// are not consecutive, which the descriptor cannot express.
    pub(crate) fn descriptor(&self, block_size: u64) -> Value {
        let Some((host, port)) = base_endpoint(&self.events) else { return Value::Null };
        let mut descriptor = json!({
            "publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": self.topic,
            "block_size": block_size, "dp_size": self.events.len(),
        });
        if let Some((host, port)) = base_endpoint(&self.replays) {
            descriptor["replay_endpoint_host"] = host.into();
            descriptor["replay_endpoint_port_base"] = port.into();
            descriptor["replay_buffer_steps"] = self.kept_batches.into();
        }
        // Routers expect loads on the host of the events.
        if let Some((load_host, port)) = base_endpoint(&self.loads)
            && load_host == host
        {
            descriptor["load_endpoint_port_base"] = port.into();
            descriptor["load_topic"] = LOAD_TOPIC.into();
        }
        descriptor
    }
}

/// Host and first port, if the port of rank `i` is the first plus `i`. `*` stands for the host at
/// which a router reaches the server.
fn base_endpoint(addresses: &[SocketAddr]) -> Option<(String, u16)> {
    let first = addresses.first()?;
    let is_consecutive = addresses
        .iter()
        .zip(u32::from(first.port())..)
        .all(|(address, port)| u32::from(address.port()) == port);
    let host = match first {
        _ if first.ip().is_unspecified() => "*".to_owned(),
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    };
    is_consecutive.then_some((host, first.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &[&str]) -> Vec<SocketAddr> {
        text.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn descriptors_contain_the_base_ports() {
        let streams = PublishedStreams {
            topic: "kv".into(),
            events: addresses(&["0.0.0.0:5557", "0.0.0.0:5558"]),
            replays: addresses(&["0.0.0.0:6557", "0.0.0.0:6558"]),
            kept_batches: 10,
            loads: addresses(&["0.0.0.0:7557", "0.0.0.0:7558"]),
        };
        let whole = json!({
            "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv",
            "block_size": 16, "dp_size": 2, "replay_endpoint_host": "*",
            "replay_endpoint_port_base": 6557, "replay_buffer_steps": 10,
            "load_endpoint_port_base": 7557, "load_topic": "load",
        });
        assert_eq!(streams.descriptor(16), whole);
        let one = PublishedStreams { events: addresses(&["[::1]:5557"]), ..PublishedStreams::default() };
        let expected = json!({
            "publisher": "zmq", "endpoint_host": "[::1]", "endpoint_port_base": 5557, "topic": "",
            "block_size": 16, "dp_size": 1,
        });
        assert_eq!(one.descriptor(16), expected);
        let elsewhere = PublishedStreams { loads: addresses(&["127.0.0.1:7557"]), ..one };
        assert_eq!(elsewhere.descriptor(16), expected);
    }

    #[test]
    fn nonconsecutive_ports_have_no_descriptor() {
        let events = addresses(&["127.0.0.1:5557", "127.0.0.1:6000"]);
        let streams = PublishedStreams { events, ..PublishedStreams::default() };
        assert_eq!(streams.descriptor(16), Value::Null);
        assert_eq!(PublishedStreams::default().descriptor(16), Value::Null);
    }
}

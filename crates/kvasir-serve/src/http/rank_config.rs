//! Limits of the engines and addresses of their streams, as routers in front of several servers need
//! them.

use kvasir_engine::Route;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// What an app knows of its engines' configuration.
#[derive(Clone, Debug, Default)]
pub struct RankConfig {
    /// Most running sequences of an engine.
    pub max_num_seqs: u32,
    /// Most tokens in a step of an engine.
    pub max_num_batched_tokens: u32,
    /// Routing policy over several engines.
    pub route: Option<Route>,
    /// Addresses of streams.
    pub streams: EventStreams,
}

/// Addresses of what the engines publish, each by rank; empty for what is off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventStreams {
    /// First frame of the messages of KV events.
    pub topic: String,
    /// Streams of KV events.
    pub events: Vec<SocketAddr>,
    /// Replays of KV events.
    pub replays: Vec<SocketAddr>,
    /// Batches that a stream keeps for replays.
    pub kept_batches: usize,
    /// Streams of loads.
    pub loads: Vec<SocketAddr>,
}

/// First frame of the messages of loads.
pub(crate) const LOAD_TOPIC: &str = "load";

impl EventStreams {
    /// SGLang's descriptor of the publisher; `null` without KV events, or if the ports of the ranks
    /// are not in a row, which it cannot express.
    pub(crate) fn descriptor(&self, block_size: u64) -> Value {
        let Some((host, port)) = in_a_row(&self.events) else { return Value::Null };
        let mut descriptor = json!({
            "publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": self.topic,
            "block_size": block_size, "dp_size": self.events.len(),
        });
        if let Some((host, port)) = in_a_row(&self.replays) {
            descriptor["replay_endpoint_host"] = host.into();
            descriptor["replay_endpoint_port_base"] = port.into();
            descriptor["replay_buffer_steps"] = self.kept_batches.into();
        }
        // Routers expect loads on the host of the events.
        if let Some((load_host, port)) = in_a_row(&self.loads)
            && load_host == host
        {
            descriptor["load_endpoint_port_base"] = port.into();
            descriptor["load_topic"] = LOAD_TOPIC.into();
        }
        descriptor
    }
}

/// Host and first port, if the port of rank `i` is the first plus `i`. The host `*` is the one of the
/// server, as a router knows it.
fn in_a_row(addresses: &[SocketAddr]) -> Option<(String, u16)> {
    let first = addresses.first()?;
    let is_in_row = addresses
        .iter()
        .zip(u32::from(first.port())..)
        .all(|(address, port)| u32::from(address.port()) == port);
    let host = match first {
        _ if first.ip().is_unspecified() => "*".to_owned(),
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    };
    is_in_row.then_some((host, first.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &[&str]) -> Vec<SocketAddr> {
        text.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn descriptors_have_the_first_port_of_each_row() {
        let streams = EventStreams {
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
        let one = EventStreams { events: addresses(&["[::1]:5557"]), ..EventStreams::default() };
        let expected = json!({
            "publisher": "zmq", "endpoint_host": "[::1]", "endpoint_port_base": 5557, "topic": "",
            "block_size": 16, "dp_size": 1,
        });
        assert_eq!(one.descriptor(16), expected);
        let elsewhere = EventStreams { loads: addresses(&["127.0.0.1:7557"]), ..one };
        assert_eq!(elsewhere.descriptor(16), expected);
    }

    #[test]
    fn scattered_ports_have_no_descriptor() {
        let events = addresses(&["127.0.0.1:5557", "127.0.0.1:6000"]);
        let streams = EventStreams { events, ..EventStreams::default() };
        assert_eq!(streams.descriptor(16), Value::Null);
        assert_eq!(EventStreams::default().descriptor(16), Value::Null);
    }
}

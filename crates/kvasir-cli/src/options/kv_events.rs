//! Options of `serve` for publishing KV events and loads.

use crate::io::failure::Failure;
use crate::options::host::host;
use crate::options::reports::log_warning;
use crate::options::rules::rule;
use kvasir_fleet::{BoundLoadPublisher, KvPublisher, KvPublisherConfig};
use kvasir_serve::report::Reports;
use std::{net::SocketAddr, sync::Arc};

/// Where KV events and loads are published.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KvEventArgs {
    /// Publish KV events in vLLM's format at this address, such as tcp://127.0.0.1:5557; with --dp the engines have ports in a row
    #[arg(long, env = "KVASIR_KV_EVENTS", value_name = "tcp://HOST:PORT", value_parser = endpoint)]
    kv_events: Option<SocketAddr>,
    /// Repeat past KV events at this address, such as tcp://127.0.0.1:6557; with --dp the engines have ports in a row [default: none]
    #[arg(long, env = "KVASIR_KV_EVENTS_REPLAY", value_name = "tcp://HOST:PORT", value_parser = endpoint)]
    kv_events_replay: Option<SocketAddr>,
    /// Topic of KV events, such as kv@POD@MODEL for llm-d [default: empty]
    #[arg(long, env = "KVASIR_KV_EVENTS_TOPIC", value_name = "TOPIC")]
    kv_events_topic: Option<String>,
    /// Publish the load of each engine in SGLang's format at this address, such as tcp://127.0.0.1:7557; with --dp the engines have consecutive ports [default: none]
    #[arg(long, env = "KVASIR_LOAD_EVENTS", value_name = "tcp://HOST:PORT", value_parser = endpoint)]
    load_events: Option<SocketAddr>,
}

/// Parses `tcp://HOST:PORT`; the host `*` is every IPv4 address.
fn endpoint(text: &str) -> Result<SocketAddr, String> {
    let wanted = || format!("`{text}` is no address of the form tcp://HOST:PORT");
    let (name, port) =
        text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wanted)?;
    let port = port.parse().map_err(|_| wanted())?;
    let address = host(if name == "*" { "0.0.0.0" } else { name })?;
    Ok(SocketAddr::new(address, port))
}

impl KvEventArgs {
    /// Whether KV events are published.
    pub(crate) fn is_on(&self) -> bool {
        self.kv_events.is_some()
    }

    /// Checks the options for this number of engines.
    pub(crate) fn check(&self, engines: u32) -> Result<(), Failure> {
        let is_on = self.is_on();
        rule(is_on || self.kv_events_replay.is_none(), || "--kv-events-replay needs --kv-events".into())?;
        rule(is_on || self.kv_events_topic.is_none(), || "--kv-events-topic needs --kv-events".into())?;
        let named = [
            ("--kv-events", self.kv_events),
            ("--kv-events-replay", self.kv_events_replay),
            ("--load-events", self.load_events),
        ];
        let ports = named.map(|(name, address)| (name, address.map_or(0, |address| address.port())));
        for (i, (name, port)) in ports.into_iter().enumerate() {
            for (other, other_port) in &ports[..i] {
                let is_disjoint =
                    u32::from(port.abs_diff(*other_port)) >= engines || port == 0 || *other_port == 0;
                rule(is_disjoint, || {
                    format!(
                        "{name}: the ports from `{port}` and those of {other} overlap; each needs {engines}"
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Topic of KV events.
    pub(crate) fn topic(&self) -> String {
        self.kv_events_topic.clone().unwrap_or_default()
    }

    /// Binds the sockets of `--load-events`, one per engine; `None` without the option.
    pub(crate) fn bind_loads(&self, engines: u32) -> Result<Option<BoundLoadPublisher>, Failure> {
        let Some(address) = self.load_events else { return Ok(None) };
        let bound = BoundLoadPublisher::bind(address, engines);
        bound.map(Some).map_err(|error| Failure::failed(format!("--load-events: {error}")))
    }

    /// Starts the publisher of this number of engines, if it is on.
    pub(crate) fn start(&self, engines: u32, reports: Arc<Reports>) -> Result<Option<KvPublisher>, Failure> {
        let Some(address) = self.kv_events else { return Ok(None) };
        let config = KvPublisherConfig {
            replay: self.kv_events_replay,
            topic: self.topic(),
            ranks: engines,
            ..KvPublisherConfig::new(address, Box::new(move |line| log_warning(&reports, line)))
        };
        let started = KvPublisher::start(config).map_err(|error| {
            let option = if error.is_replay { "--kv-events-replay" } else { "--kv-events" };
            Failure::failed(format!("{option}: {error}"))
        });
        started.map(Some)
    }
}

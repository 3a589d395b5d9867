//! Sockets of clients: a listener with a connection limit, TLS, write timeouts, half-closed
//! clients, a reserve for probes.
//!
//! Knows no route and no model.

pub(crate) mod connection;
pub(crate) mod exchange;
pub(crate) mod limit_listener;
pub(crate) mod peers;
pub(crate) mod probe_reserve;
pub(crate) mod tls;

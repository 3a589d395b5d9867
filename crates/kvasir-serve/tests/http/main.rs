//! The server without its sockets: every route and the real engine, on a device whose words depend on all that it has read.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod health;
mod leavers;
mod origins;
mod probes;
mod server;
mod sessions;
mod stops;

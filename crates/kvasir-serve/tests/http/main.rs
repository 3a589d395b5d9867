//! HTTP integration tests without sockets: all routes and the real engine, on a toy device whose
//! output depends on every token read.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod access;
mod background;
mod clamped;
mod compaction;
mod context_shift;
mod conversations;
mod half_closed;
mod health;
mod leavers;
mod llama_cpp;
mod media;
mod messages;
mod metrics;
mod missing_routes;
mod ollama;
mod origins;
mod output_fields;
mod page;
mod pins;
mod prefix_ends;
mod probes;
mod request_work;
mod server;
mod server_info;
mod sessions;
mod slots;
mod slow_readers;
mod sockets;
mod speculation;
mod stops;
mod stored_responses;

//! `kvasir serve` end to end: a real process, real sockets, a tiny model.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod agents;
mod answers;
mod bad_input;
mod bounds;
mod bystander;
mod doctor;
mod embeddings;
mod encoders;
mod experts;
mod faults;
mod fleet;
mod formats_beside_tools;
mod full_context;
mod kv_events;
mod limits;
mod memory;
mod operations;
mod ranks;
mod recurrent_models;
mod recurrent_ranks;
mod sampling;
mod server;
mod slots;
mod speculation;
mod storm;
mod tokenizers;
mod tool_calls;
mod window_models;

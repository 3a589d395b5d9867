//! Kvasir's engine as an engine of Dynamo: [`KvasirEngine`] implements its
//! [`LLMEngine`](dynamo_backend_common::LLMEngine).
//!
//! In reading order: `failure`, `request` (Dynamo's request as parameters of the engine), `load`
//! (what the router reads of the engine), `engine_thread`, `output` (the engine's events as Dynamo's
//! chunks), `engine`, `arguments`.

#![forbid(unsafe_code)]

mod arguments;
mod engine;
mod engine_thread;
mod failure;
mod load;
mod output;
mod request;

pub use crate::arguments::Arguments;
pub use crate::engine::{EngineSetup, KvasirEngine};

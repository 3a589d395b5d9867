//! Kvasir's engine in a worker of Dynamo: [`KvasirEngine`] implements
//! [`LLMEngine`](dynamo_backend_common::LLMEngine).
//!
//! In reading order: `failure`, `request` (converts requests), `load` (publishes the load for
//! routers), `engine_thread`, `output` (converts events), `engine`, `arguments`.

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

//! Tokenizer processes: tokenization of prompts and detokenization of answers outside of the front.
//!
//! ```text
//! handlers ──► TokenizerClient ──► pool thread ──jobs──► reader ─► encoding threads   (process 0)
//!    ▲                                │   ▲                 └────► detokenizer
//!    └─────────── results ────────────┘   └───results──── writer ◄──┘
//! ```
//!
//! - `job`: what a process computes, and its result. `frame`: messages on a socket.
//! - `jobs`: open jobs, and the process that each is assigned to.
//! - `pool_command`, `client`: the handle of callers.
//! - `link`: the front's end of a process's socket. `pool`: the thread that supervises the
//!   processes. `process`: the other side.
//!
//! A job carries all that its result depends on; the state of a stream is its incomplete
//! character. So a process holds no stream, and the jobs of a process that ends run on another.
//! Jobs that are submitted at the same time travel in one message.
//!
//! Each process has a socket pair: its standard input. There is no path to leave behind, a
//! suspended process delays no other one, and a process ends when the front's end is closed.
//!
//! Guarded by `jobs/tests.rs`, `pool/tests.rs` and `kvasir-cli/tests/serve/tokenizers.rs`.

mod client;
mod error;
mod frame;
mod job;
mod jobs;
mod link;
mod pool;
mod pool_command;
mod process;

pub use crate::tokenizers::client::TokenizerClient;
pub use crate::tokenizers::error::TokenizerError;
pub use crate::tokenizers::pool::{TokenizerArguments, TokenizerConfig, TokenizerPool};
pub use crate::tokenizers::process::{TokenizerProcessConfig, run_tokenizer};

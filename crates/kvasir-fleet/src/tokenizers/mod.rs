//! Tokenizer processes: tokenize prompts and detokenize answers outside of the front process.
//!
//! ```text
//! handlers ──► TokenizerClient ──► pool thread ──jobs──► reader ─► encoding threads   (process 0)
//!    ▲                                │   ▲                 └────► detokenizer
//!    └─────────── results ────────────┘   └───results──── writer ◄──┘
//! ```
//!
//! - `job`: a job, its result, and messages. `frame`: framing of messages on a socket.
//! - `jobs`: assigns open jobs to processes.
//! - `client`: the handle of callers. `pool_command`: its messages to the pool.
//! - `link`: the front's end of a process's socket. `pool`: the thread that supervises the
//!   processes. `process`: the code of a tokenizer process.
//!
//! A job contains everything that its result depends on, including the detokenizer state of a
//! stream. Processes are therefore stateless, and the jobs of a process that ends run on another.
//! Jobs that are submitted at the same time are sent in one message.
//!
//! Each process communicates over a socket pair, of which its standard input is one end. No socket
//! file is left behind, a suspended process does not delay the others, and a process exits when the
//! front closes its end.
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
pub use crate::tokenizers::pool::{TokenizerArguments, TokenizerConfig, TokenizerPool, TokenizerStart};
pub use crate::tokenizers::process::{TokenizerProcessConfig, run_tokenizer};

//! The front door: a model opened, a backend chosen, an engine put together from parts that compose freely.
//!
//! ```no_run
//! # fn main() -> Result<(), kvasir::Error> {
//! let opened = kvasir::Opened::open("models/qwen3".as_ref())?;
//! let model = opened.load(kvasir::BackendKind::Auto, kvasir::Precision::Auto, None)?;
//! let last = model.logits(&[1, 2, 3], false)?;
//! # Ok(()) }
//! ```
//!
//! It puts together and decides nothing: policy, cache and limits come in a [`Core`](kvasir_engine::Core).
#![forbid(unsafe_code)]

mod backend;
mod engine;
mod error;
mod inspection;
mod logits;
mod opened;

pub use backend::{AnyExecutor, AnyPending, BackendKind};
pub use error::Error;
pub use inspection::{Inspection, KvFacts, MemoryPlan};
pub use kvasir_cpu::Precision;
pub use opened::{Loaded, Opened};

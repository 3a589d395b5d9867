//! The front door: a model opened, a backend chosen, an engine put together from parts that compose freely.
//!
//! ```no_run
//! # fn main() -> Result<(), kvasir::Error> {
//! let opened = kvasir::Opened::open("models/qwen3".as_ref())?;
//! let model = opened.load(kvasir::BackendKind::Auto)?;
//! let last = model.logits(&[1, 2, 3], false)?;
//! # Ok(()) }
//! ```
//!
//! It puts together and decides nothing: what can be chosen is in [`EngineOptions`].
#![forbid(unsafe_code)]

mod backend;
mod engine;
mod error;
mod inspection;
mod logits;
mod opened;

pub use backend::{AnyExecutor, AnyPending, BackendKind};
pub use engine::{EngineOptions, PolicyKind};
pub use error::Error;
pub use inspection::{Inspection, KvFacts, MemoryPlan};
pub use opened::{Loaded, Opened};

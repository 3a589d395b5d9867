//! GGUF versions 2 and 3: validated reading, streaming writing, and mapping to Hugging Face names
//! and configs.
//!
//! Guarded by `tests/hostile.rs`, `tests/gguf_config.rs` and the `gguf` fuzz target.

mod config;
mod cursor;
mod names;
mod reader;
mod value;
mod writer;

pub(crate) use config::{GENERATION, ORIGINAL, generation_config, hf_config};
pub(crate) use names::{HfName, Naming, is_latent};
pub use reader::{Gguf, TensorInfo};
pub use value::{Array, Kind, Value};
pub use writer::Writer;

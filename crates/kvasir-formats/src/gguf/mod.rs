//! GGUF versions 2 and 3: validated reading, streaming writing, and mapping to Hugging Face names
//! and configs.
//!
//! Guarded by `tests/hostile.rs`, `tests/gguf_config.rs` and the `gguf` fuzz target.

pub(crate) mod cursor;
pub(crate) mod file_metadata;
pub(crate) mod kv_metadata;
pub(crate) mod names;
pub(crate) mod reader;
pub(crate) mod value;
pub(crate) mod writer;

pub use crate::gguf::reader::{Gguf, TensorInfo};
pub use crate::gguf::value::{Array, Kind, Value};
pub use crate::gguf::writer::Writer;

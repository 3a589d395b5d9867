//! Model file formats: safetensors, GGUF, configs, tokenizers and chat templates. All input is
//! untrusted.
//!
//! [`Checkpoint::open`] takes a Hugging Face directory or a GGUF file. It returns named tensors over
//! memory-mapped files, under Hugging Face names, with a config in Hugging Face spelling.
//!
//! - Weights: `Checkpoint`, `encoding` (dequantize and quantize), `gguf`, `convert` (Hugging Face
//!   to GGUF).
//! - Text: `Tokenizer` (BPE, Unigram, WordPiece), `ChatTemplate` (sandboxed Jinja), `TextFiles`.
//!
//! Invariants: sizes are checked before memory is allocated, offsets before bytes are read, and no
//! input panics. A bad file yields an [`Error`] that names the file and the place. Guarded by
//! `tests/hostile.rs` and the fuzz targets.
#![deny(unsafe_code)]

mod checkpoint;
mod config;
mod convert;
mod dtype;
pub mod encoding;
mod error;
mod facts;
pub mod gguf;
mod kv_facts;
mod map;
mod safetensors_file;
mod source;
mod tensor;
mod text_files;
mod text_part;
mod tokenizer;
mod whole_file;

pub use checkpoint::Checkpoint;
pub use config::{Quantization, Scheme};
pub use convert::{Converted, Rules, convert, convert_to};
pub use dtype::DType;
pub use error::{Error, Result};
pub use facts::Facts;
pub use kv_facts::check_kv_facts;
pub use map::Mapped;
pub use tensor::TensorView;
pub use text_files::TextFiles;
pub use tokenizer::{TextStream, Tokenizer};
pub use whole_file::WholeFile;

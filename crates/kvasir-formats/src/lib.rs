//! Model file formats: safetensors, GGUF, configs and tokenizers. All input is untrusted.
//!
//! [`Checkpoint::open`] takes a Hugging Face directory or a GGUF file. It returns named tensors over
//! memory-mapped files, under Hugging Face names, with a config in Hugging Face spelling.
//!
//! - Weights: `Checkpoint`, `encoding` (dequantize and quantize), `gguf`, `convert` (Hugging Face
//!   to GGUF).
//! - Text: `Tokenizer` (BPE, Unigram, WordPiece), and `TextFiles` (tokenizer, chat template and
//!   special tokens of a model).
//!
//! Floors; each imports from those before it:
//!
//! 1. `error`, `files`, `dtype`, `encoding`, `tensor`
//! 2. `gguf`, `safetensors`
//! 3. `tokenizer`, `config`
//! 4. `checkpoint`, `text_files`
//! 5. `convert`
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
mod files;
pub mod gguf;
mod safetensors;
mod tensor;
mod text_files;
mod tokenizer;

pub use crate::checkpoint::Checkpoint;
pub use crate::config::quantization::{Quantization, Scheme};
pub use crate::convert::rules::Rules;
pub use crate::convert::{Converted, convert, convert_to};
pub use crate::dtype::DType;
pub use crate::error::{Error, Result};
pub use crate::files::atomic_file::AtomicFile;
pub use crate::files::mapped::Mapped;
pub use crate::gguf::kv_metadata::check_kv_facts;
pub use crate::tensor::TensorView;
pub use crate::text_files::TextFiles;
pub use crate::tokenizer::Tokenizer;
pub use crate::tokenizer::detokenize::TextStream;
pub use crate::tokenizer::overlaps::Overlaps;
pub use crate::tokenizer::text_pair::TextPair;

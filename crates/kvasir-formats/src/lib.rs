//! Files that hold models: safetensors, GGUF, configs, tokenizers, chat templates. None of them is trusted.
//!
//! [`Checkpoint::open`] takes a directory in the Hugging Face layout or a GGUF file and gives one thing: named
//! tensors over memory-mapped files, under Hugging Face names, and a config in Hugging Face spelling.
//!
//! Everything is checked before it is used: sizes before memory is taken, offsets before bytes are read. A bad
//! file is an [`Error`] that names the file and the place in it.
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
mod template;
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
pub use template::{ChatTemplate, Limits};
pub use tensor::TensorView;
pub use text_files::TextFiles;
pub use tokenizer::{TextStream, Tokenizer};
pub use whole_file::WholeFile;

//! GGUF, version 2 and 3: reading with every size checked, writing, and the way back to Hugging Face names.

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

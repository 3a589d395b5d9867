//! Configs in Hugging Face spelling, from `config.json`, multimodal checkpoints and GGUF metadata.

pub(crate) mod from_gguf;
pub(crate) mod language_model;
pub(crate) mod quantization;
pub(crate) mod renames;
pub(crate) mod sentence_transformers;

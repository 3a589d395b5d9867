//! One file per endpoint or family of endpoints: reads the request, submits it, writes the
//! response.
//!
//! Knows no socket and no middleware; builds on `http::body` and `http::answers`.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod conversations;
mod cross_encoder;
pub(crate) mod embeddings;
pub(crate) mod llama_cpp;
pub(crate) mod math;
pub(crate) mod messages;
pub(crate) mod ollama;
pub(crate) mod openapi;
pub(crate) mod pins;
pub(crate) mod replicas;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod server_info;
pub(crate) mod sessions;
pub(crate) mod slots;
pub(crate) mod status;
pub(crate) mod steps;
mod text_pairs;
pub(crate) mod tokenizers;
pub(crate) mod tokens;
pub(crate) mod web_ui;

//! Tables of request fields, one per kind of body: supported, ignored by contract, or rejected.
//! Tables with fields in common are joined from groups.
//!
//! The single source for parsing (which fields are stored), validation and OpenAPI.
//! `tests/fields.rs` checks every entry against the parsers.
//!
//! One file per API. `groups`, `reasons` and the macro of `table` are shared.

mod anthropic;
mod groups;
mod kvasir;
mod llama_cpp;
mod ollama;
mod openai;
mod reasons;
mod rerank;
mod table;

pub use crate::request::fields::anthropic::{COUNT_TOKENS, MESSAGES};
pub(crate) use crate::request::fields::groups::SAMPLERS;
pub use crate::request::fields::kvasir::{CUT, DETOKENIZE, FORK, MATH, REWIND, SESSIONS, TOKENIZE};
pub(crate) use crate::request::fields::llama_cpp::SLOT_ACTION;
pub use crate::request::fields::llama_cpp::{APPLY_TEMPLATE, INFILL, LLAMA_COMPLETION, LLAMA_EMBEDDING};
pub use crate::request::fields::ollama::{
    OLLAMA_CHAT, OLLAMA_COPY, OLLAMA_CREATE, OLLAMA_DELETE, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE,
    OLLAMA_PULL, OLLAMA_PUSH, OLLAMA_SHOW,
};
pub use crate::request::fields::openai::{CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES};
pub(crate) use crate::request::fields::openai::{
    COMPACT, CONVERSATION, CONVERSATION_ITEMS, CONVERSATIONS, SOCKET,
};
pub use crate::request::fields::rerank::{COHERE_RERANK, RERANK, SCORE};

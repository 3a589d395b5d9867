//! Request parsing and validation: from JSON bodies to typed requests, for all endpoints.
//!
//! Every field of every endpoint is classified once, in `fields`; `endpoints` lists the routes. Bodies
//! are parsed within a memory budget (`body`), and errors name the field by its path
//! (`reader`).
//!
//! Knows no model and no socket; builds on `context` and on the specifications of `grammar`.

pub(crate) mod body;
pub(crate) mod cache_marks;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod conversation;
pub(crate) mod conversations;
pub(crate) mod embeddings;
pub(crate) mod endpoints;
pub(crate) mod field;
pub(crate) mod fields;
pub(crate) mod length;
pub(crate) mod llama_cpp;
pub(crate) mod media;
pub(crate) mod messages;
pub(crate) mod messages_blocks;
pub(crate) mod messages_tools;
pub(crate) mod ollama;
pub(crate) mod output_fields;
pub(crate) mod reader;
pub(crate) mod rerank;
pub(crate) mod response_format;
pub(crate) mod responses;
pub(crate) mod responses_tools;
pub(crate) mod samplers;
pub(crate) mod sampling;
pub(crate) mod sessions;
pub(crate) mod speculation;
pub(crate) mod tools;

pub use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
pub use crate::request::body::Body;
pub use crate::request::cache_marks::CacheMark;
pub use crate::request::chat::{ChatRequest, StreamOptions};
pub use crate::request::completions::{CompletionRequest, Prompt};
pub use crate::request::embeddings::{EmbeddingsRequest, Encoding, llama_embedding};
pub use crate::request::endpoints::{ENDPOINTS, Endpoint};
pub use crate::request::field::{Class, Field};
pub use crate::request::fields::{
    APPLY_TEMPLATE, CHAT, COHERE_RERANK, COMPLETIONS, COUNT_TOKENS, CUT, DETOKENIZE, EMBEDDINGS, FORK,
    INFILL, LLAMA_COMPLETION, LLAMA_EMBEDDING, MATH, MESSAGES, OLLAMA_CHAT, OLLAMA_COPY, OLLAMA_CREATE,
    OLLAMA_DELETE, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE, OLLAMA_PULL, OLLAMA_PUSH, OLLAMA_SHOW,
    RERANK, RESPONSES, REWIND, SCORE, SESSIONS, TOKENIZE,
};
pub use crate::request::length::{Length, Overlong};
pub use crate::request::llama_cpp::LlamaCppRequest;
pub use crate::request::media::UnreadMedia;
pub use crate::request::messages::MessagesRequest;
pub use crate::request::ollama::models::{OllamaCopy, OllamaModel};
pub use crate::request::ollama::{OllamaEmbedding, OllamaRequest, OllamaTask};
pub use crate::request::output_fields::OutputFields;
pub use crate::request::reader::Reader;
pub use crate::request::rerank::{RerankRequest, ScoreRequest, Scoring};
pub use crate::request::responses::ResponsesRequest;
pub use crate::request::samplers::SamplerFields;
pub use crate::request::sampling::SamplingFields;
pub use crate::request::sessions::{
    ForkRequest, InitialContent, SessionPosition, SessionRange, SessionRequest, read_cut, read_rewind,
};
pub use crate::request::tools::custom_input;

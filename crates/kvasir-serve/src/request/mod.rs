//! Request parsing and validation: from JSON bodies to typed requests, for all endpoints.
//!
//! Every field of every endpoint is classified once, in `fields`. Bodies are parsed within a memory
//! budget (`json`, `memory`), and errors name the field by its path (`reader`).

mod anthropic;
mod chat;
mod completion;
mod embeddings;
mod fields;
mod form;
mod freeform;
mod json;
mod memory;
mod message;
mod reader;
mod responses;
mod sampling;
mod session;
mod tools;
mod unknown;

pub use anthropic::MessagesRequest;
pub use chat::{ChatRequest, StreamOptions, ThinkingBudget};
pub use completion::{CompletionRequest, Prompt};
pub use embeddings::{EmbeddingsRequest, Encoding};
pub use fields::{
    CHAT, COMPLETIONS, COUNT_TOKENS, Class, DETOKENIZE, EMBEDDINGS, ENDPOINTS, Endpoint, FORK, Field,
    MESSAGES, RESPONSES, REWIND, SESSIONS, TOKENIZE,
};
pub use form::AskedForm;
pub use freeform::custom_input;
pub use json::Body;
pub(crate) use memory::BodyMemory;
pub use message::{Content, Message, Role};
pub use reader::Reader;
pub use responses::ResponsesRequest;
pub use sampling::{Length, SamplingFields};
pub use session::{Begin, ForkRequest, Place, SessionRequest, read_rewind};
pub use tools::{Tool, ToolChoice, ToolKind};
pub(crate) use unknown::SeenFields;
pub use unknown::{IgnoredFields, UnknownFields};

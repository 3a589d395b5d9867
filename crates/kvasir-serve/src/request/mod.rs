//! From a body to a request: every field of every endpoint is classified once, in one table, and read once.

mod chat;
mod completion;
mod fields;
mod json;
mod reader;
mod sampling;
mod tools;

pub use chat::{ChatRequest, Content, Message, Role, StreamOptions};
pub use completion::{CompletionRequest, Prompt};
pub use fields::{CHAT, COMPLETIONS, Class, Field, classify};
pub use json::parse_body;
pub use reader::Reader;
pub use sampling::{Length, SamplingFields};
pub use tools::{ResponseFormat, Tool, ToolChoice};

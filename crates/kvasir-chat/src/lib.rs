//! Chats with a language model, independent of engine and HTTP: renders messages and tools to a
//! prompt, constrains the answer (structured output), and parses it into content, reasoning and
//! tool calls.
//!
//! Modules in reading order; each imports only from those before it:
//!
//! - `error`, `message`, `tool`: errors, messages of a chat, tools offered to the model.
//! - `scan`: incremental scanners of generated text.
//! - `grammar`: structured output, compiled to token masks.
//! - `dialect`: how model families write reasoning and tool calls.
//! - `answer`: parses output: stop sequences, reasoning, tool calls.
//! - `model`: a model's tokenizer, chat template and dialects ([`ChatModel`]); renders prompts and
//!   compiles the constraints of answers.
//!
//! [`ChatModel`] is the entry point. The caller tokenizes the [`RenderedPrompt`], generates under the
//! [`ChatConstraint`] with any engine, and feeds the text to a [`Choice`].
//!
//! This crate must not know engines, HTTP request formats, sockets or async runtimes.

#![forbid(unsafe_code)]

pub mod answer;
pub mod dialect;
mod error;
pub mod grammar;
mod message;
pub mod model;
mod scan;
mod tool;

pub use crate::answer::choice::{Choice, ParseOptions};
pub use crate::answer::events::Delta;
pub use crate::error::ChatError;
pub use crate::grammar::spec::Shape;
pub use crate::message::{AssistantTurn, Content, Message, Role};
pub use crate::model::chat_constraint::{AnswerRules, ChatConstraint, ResponseFormat, ThinkingBudget};
pub use crate::model::chat_model::{ChatModel, VocabularyFacts};
pub use crate::model::conversation::Conversation;
pub use crate::model::detokenizer::{Detokenizer, DetokenizerState};
pub use crate::model::recipe::{ChatForm, Form, Recipe};
pub use crate::model::remote_tokenizer::{
    DetokenizedTokens, PendingTexts, RemoteTokenizer, RemoteTokenizerError, TokenizerStatus,
};
pub use crate::model::rendered_prompt::RenderedPrompt;
pub use crate::scan::stop_regex::StopRegex;
pub use crate::tool::{Tool, ToolChoice, ToolKind};

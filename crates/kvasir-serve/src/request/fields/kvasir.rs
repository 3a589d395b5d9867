//! Fields of the session, tokenizer and page routes.

use crate::request::field::{Field, list, yes};
use crate::request::fields::groups::CHAT_MESSAGE;

/// Fields of `POST /v1/sessions`.
pub const SESSIONS: &[Field] = &[yes("model"), list("messages", CHAT_MESSAGE), yes("prompt"), yes("ttl")];

/// Fields of `POST /v1/sessions/ID/fork`.
pub const FORK: &[Field] = &[yes("n"), yes("at")];

/// Fields of `POST /v1/sessions/ID/rewind`.
pub const REWIND: &[Field] = &[yes("to")];

/// Fields of `POST /v1/sessions/ID/cut`.
pub const CUT: &[Field] = &[yes("from"), yes("to")];

/// Fields of `/tokenize`.
pub const TOKENIZE: &[Field] = &[
    yes("model"),
    yes("prompt"),
    yes("content"),
    yes("add_special_tokens"),
    yes("add_special"),
    list("messages", CHAT_MESSAGE),
    yes("tools"),
    yes("add_generation_prompt"),
    yes("continue_final_message"),
    yes("chat_template_kwargs"),
    yes("return_token_strs"),
    yes("with_pieces"),
];

/// Fields of `/detokenize`.
pub const DETOKENIZE: &[Field] = &[yes("model"), yes("tokens")];

/// Fields of `/page/math`.
pub const MATH: &[Field] = &[list("items", &["latex", "display"])];

//! Fields of the rerank and score routes.

use crate::request::field::{Field, skip, yes};
use crate::request::fields::reasons::PROVIDER_LABEL;

/// Fields of `/v1/rerank`.
pub const RERANK: &[Field] = &[
    yes("model"),
    yes("query"),
    yes("documents"),
    yes("texts"),
    yes("top_n"),
    yes("return_documents"),
    yes("return_text"),
    yes("method"),
    yes("instruction"),
    skip("user", PROVIDER_LABEL),
];

/// Fields of `/v2/rerank`.
pub const COHERE_RERANK: &[Field] = &[
    yes("model"),
    yes("query"),
    yes("documents"),
    yes("top_n"),
    yes("max_tokens_per_doc"),
    yes("method"),
    yes("instruction"),
    skip("priority", "the priority of a ranking is that of its key"),
];

/// Fields of `/v1/score`.
pub const SCORE: &[Field] = &[
    yes("model"),
    yes("text_1"),
    yes("text_2"),
    yes("method"),
    yes("instruction"),
    skip("user", PROVIDER_LABEL),
];

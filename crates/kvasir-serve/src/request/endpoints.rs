//! Table of all HTTP endpoints, from which the OpenAPI description is generated.

use super::{
    CHAT, COMPLETIONS, COUNT_TOKENS, DETOKENIZE, EMBEDDINGS, FORK, Field, MESSAGES, RESPONSES, REWIND,
    SESSIONS, TOKENIZE,
};

/// An endpoint as documented to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// HTTP method in lower case.
    pub method: &'static str,
    /// Path; names in braces are parameters.
    pub path: &'static str,
    /// One-line summary.
    pub summary: &'static str,
    /// Fields of its body; empty if it takes none.
    pub fields: &'static [Field],
}

const fn get(path: &'static str, summary: &'static str) -> Endpoint {
    Endpoint { method: "get", path, summary, fields: &[] }
}

const fn post(path: &'static str, summary: &'static str, fields: &'static [Field]) -> Endpoint {
    Endpoint { method: "post", path, summary, fields }
}

/// Every route except the web UI's files.
pub const ENDPOINTS: &[Endpoint] = &[
    get("/live", "Whether the process is there; needs no key"),
    get("/health", "Whether requests can be answered"),
    get("/metrics", "What is counted, in Prometheus' text"),
    get("/openapi.json", "This description"),
    get("/v1/models", "The model"),
    get("/v1/models/{id}", "The model, by its name"),
    get("/v1/engine/steps", "Every step of the engine as it happens, as server-sent events"),
    post("/v1/chat/completions", "Answers a chat", CHAT),
    post("/v1/completions", "Goes on with texts or token ids", COMPLETIONS),
    post("/v1/embeddings", "The vectors of texts or token ids", EMBEDDINGS),
    post("/v1/responses", "Answers a list of items", RESPONSES),
    post("/v1/messages", "Answers a chat in Anthropic's form", MESSAGES),
    post("/v1/messages/count_tokens", "Counts the tokens of a chat in Anthropic's form", COUNT_TOKENS),
    get("/v1/sessions", "The caller's sessions"),
    post("/v1/sessions", "Begins a session", SESSIONS),
    get("/v1/sessions/{id}", "One session"),
    Endpoint { method: "delete", path: "/v1/sessions/{id}", summary: "Ends a session", fields: &[] },
    post("/v1/sessions/{id}/fork", "Branches a session, with no copying", FORK),
    post("/v1/sessions/{id}/rewind", "Shortens a session", REWIND),
    post("/tokenize", "The token ids of a text or a chat", TOKENIZE),
    post("/detokenize", "The text of token ids", DETOKENIZE),
    get("/tokenizer_info", "Control tokens and the chat template, for clients that render chats"),
];

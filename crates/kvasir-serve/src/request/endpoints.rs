//! List of all routes, each with the table of its body's fields.
//!
//! The source of the OpenAPI description, whose tests compare it with the router.

use crate::request::field::Field;
use crate::request::fields::{
    APPLY_TEMPLATE, CHAT, COHERE_RERANK, COMPACT, COMPLETIONS, CONVERSATION, CONVERSATION_ITEMS,
    CONVERSATIONS, COUNT_TOKENS, CUT, DETOKENIZE, EMBEDDINGS, FORK, INFILL, LLAMA_COMPLETION,
    LLAMA_EMBEDDING, MATH, MESSAGES, OLLAMA_CHAT, OLLAMA_COPY, OLLAMA_CREATE, OLLAMA_DELETE, OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS, OLLAMA_GENERATE, OLLAMA_PULL, OLLAMA_PUSH, OLLAMA_SHOW, RERANK, RESPONSES, REWIND,
    SCORE, SESSIONS, SLOT_ACTION, TOKENIZE,
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

const fn delete(path: &'static str, summary: &'static str) -> Endpoint {
    Endpoint { method: "delete", path, summary, fields: &[] }
}

const fn post(path: &'static str, summary: &'static str, fields: &'static [Field]) -> Endpoint {
    Endpoint { method: "post", path, summary, fields }
}

/// Every route except the web UI's files.
pub const ENDPOINTS: &[Endpoint] = &[
    get("/live", "Liveness: the process runs; needs no key"),
    get("/ping", "Liveness, under another name; needs no key"),
    get("/ready", "Readiness, under another name"),
    get("/version", "The version"),
    get("/v1/health", "Readiness, as llama.cpp has the path"),
    get("/health", "Readiness: the model is loaded and steps complete"),
    get("/metrics", "Metrics in Prometheus' text format"),
    get("/openapi.json", "This OpenAPI description"),
    get("/v1/models", "Lists the model"),
    get("/v1/models/{id}", "Describes the model"),
    get("/server_info", "Engines, their loads and the addresses of their streams, in SGLang's format"),
    get("/get_server_info", "Alias of `/server_info`"),
    get("/model_info", "Describes the model in SGLang's format"),
    get("/get_model_info", "Alias of `/model_info`"),
    get("/v1/loads", "Load of each engine, in SGLang's format"),
    get("/v1/engine/steps", "Streams the engine's steps as server-sent events"),
    post("/v1/chat/completions", "Chat completion", CHAT),
    post("/v1/chat/completions/input_tokens", "Counts the tokens of a chat", CHAT),
    post("/v1/completions", "Text completion of texts or token ids", COMPLETIONS),
    post("/v1/embeddings", "Embeddings of texts or token ids", EMBEDDINGS),
    post("/v1/rerank", "Ranks documents by how well they answer a query", RERANK),
    post("/v2/rerank", "Ranks documents, in the form of Cohere's v2 API", COHERE_RERANK),
    post("/v1/score", "Similarity of texts", SCORE),
    post("/v1/responses", "OpenAI's Responses API", RESPONSES),
    post("/v1/responses/input_tokens", "Counts the tokens of a response's input", RESPONSES),
    get("/v1/responses", "OpenAI's Responses API over a WebSocket"),
    post("/v1/responses/compact", "A summary of a conversation, in one item", COMPACT),
    get("/v1/responses/{id}", "A stored response; with `stream`, its events"),
    post("/v1/responses/{id}/cancel", "Cancels a response that is generated in the background", &[]),
    delete("/v1/responses/{id}", "Deletes a stored response"),
    get("/v1/responses/{id}/input_items", "The input of a stored response"),
    post("/v1/conversations", "Creates a conversation of items", CONVERSATIONS),
    get("/v1/conversations/{id}", "Describes a conversation"),
    post("/v1/conversations/{id}", "Replaces a conversation's metadata", CONVERSATION),
    delete("/v1/conversations/{id}", "Deletes a conversation"),
    get("/v1/conversations/{id}/items", "The items of a conversation"),
    post("/v1/conversations/{id}/items", "Adds items to a conversation", CONVERSATION_ITEMS),
    get("/v1/conversations/{id}/items/{item}", "An item of a conversation"),
    delete("/v1/conversations/{id}/items/{item}", "Removes an item from a conversation"),
    post("/v1/messages", "Anthropic's Messages API", MESSAGES),
    post("/v1/messages/count_tokens", "Counts the tokens of an Anthropic request", COUNT_TOKENS),
    get("/v1/sessions", "Lists the caller's sessions"),
    post("/v1/sessions", "Creates a session", SESSIONS),
    get("/v1/sessions/{id}", "Describes a session"),
    delete("/v1/sessions/{id}", "Deletes a session"),
    post("/v1/sessions/{id}/fork", "Forks a session; shares its K/V", FORK),
    post("/v1/sessions/{id}/rewind", "Rewinds a session to a message", REWIND),
    post("/v1/sessions/{id}/cut", "Cuts messages out of a session; keeps the K/V behind them", CUT),
    post("/v1/sessions/{id}/keep", "Deletes all other forks of a session", &[]),
    get("/v1/pins", "Lists the caller's pinned prefixes"),
    delete("/v1/pins", "Ends the caller's pinned prefixes"),
    delete("/v1/pins/{id}", "Ends a pinned prefix"),
    get("/v1/admin/pins", "Lists the pinned prefixes of all keys, for an admin's key"),
    delete("/v1/admin/pins", "Ends the pinned prefixes of all keys, for an admin's key"),
    delete("/v1/admin/pins/{id}", "Ends a pinned prefix of any key, for an admin's key"),
    get("/v1/admin/tokenizers", "Lists the tokenizer processes, for an admin's key"),
    get("/v1/admin/replicas", "Lists the replicas of the engine, for an admin's key"),
    post("/v1/admin/replicas/{id}/drain", "Moves all requests off a replica, for an admin's key", &[]),
    post(
        "/v1/admin/replicas/{id}/restart",
        "Moves all requests off a replica and restarts it, for an admin's key",
        &[],
    ),
    post("/tokenize", "Tokenizes a text or a chat", TOKENIZE),
    post("/detokenize", "Detokenizes token ids", DETOKENIZE),
    get("/models", "Lists the model, as llama.cpp has the path"),
    post("/chat/completions", "Chat completion, as llama.cpp has the path", CHAT),
    post("/chat/completions/input_tokens", "Counts the tokens of a chat, as llama.cpp has the path", CHAT),
    post("/completions", "Text completion, for addresses without a version", COMPLETIONS),
    post("/responses", "OpenAI's Responses API, for addresses without a version", RESPONSES),
    post("/embeddings", "Embeddings, for addresses without a version", EMBEDDINGS),
    post("/reranking", "Ranking, under another name of llama.cpp", RERANK),
    post("/v1/reranking", "Ranking, under another name of llama.cpp", RERANK),
    post("/rerank", "Ranking, as llama.cpp has the path", RERANK),
    post("/score", "Similarity of texts, as vLLM has the path", SCORE),
    post("/completion", "llama.cpp's completion", LLAMA_COMPLETION),
    post("/embedding", "llama.cpp's embeddings", LLAMA_EMBEDDING),
    post("/infill", "llama.cpp's fill in the middle", INFILL),
    post("/apply-template", "The prompt of a chat, as llama.cpp has it", APPLY_TEMPLATE),
    get("/props", "llama.cpp's properties of the server"),
    get("/slots", "llama.cpp's list of running requests"),
    post("/slots/{id}", "Saves, restores or erases a slot, as llama.cpp does", SLOT_ACTION),
    post("/api/chat", "Ollama's chat", OLLAMA_CHAT),
    post("/api/generate", "Ollama's completion", OLLAMA_GENERATE),
    post("/api/embed", "Ollama's embeddings", OLLAMA_EMBED),
    post("/api/embeddings", "Ollama's older embeddings, of one text", OLLAMA_EMBEDDINGS),
    post("/api/show", "Ollama's description of a model", OLLAMA_SHOW),
    get("/api/tags", "Ollama's list of models"),
    get("/api/ps", "Ollama's list of loaded models"),
    post("/api/pull", "Fetches a model from the hub, with --allow-pull", OLLAMA_PULL),
    post("/api/create", "Ollama's creation of a model; says what to do instead", OLLAMA_CREATE),
    post("/api/copy", "Ollama's copy of a model; says what to do instead", OLLAMA_COPY),
    post("/api/push", "Not offered", OLLAMA_PUSH),
    Endpoint {
        method: "delete",
        path: "/api/delete",
        summary: "Ollama's deletion of a model; says what to do instead",
        fields: OLLAMA_DELETE,
    },
    get("/api/version", "The version, for Ollama's clients"),
    post("/page/math", "LaTeX formulas to MathML, for the web page", MATH),
    get("/tokenizer_info", "Control tokens and chat template, for clients that render chats"),
];

//! Fields of OpenAI's API, with vLLM's and SGLang's additions.

use crate::request::field::{Field, list, no, only, skip, yes};
use crate::request::fields::groups::{
    CHAT_MESSAGE, GENERATION, LLAMA_SERVER, OUTPUT_FORMATS, SAMPLERS, SAMPLING,
};
use crate::request::fields::reasons::{
    CONVERSATION_AS_SENT, NO_MODERATION, ONE_TIER, PREFIX_CACHE_IS_AUTOMATIC, PROVIDER_LABEL, TEXT_ONLY,
};
use crate::request::fields::table::table;

/// Fields of the `input` items of `/v1/responses`.
const RESPONSE_ITEM: &[&str] = &[
    "type",
    "id",
    "role",
    "content",
    "status",
    "phase",
    "summary",
    "encrypted_content",
    "call_id",
    "name",
    "namespace",
    "arguments",
    "input",
    "action",
    "output",
    "tools",
];

/// Fields of `/v1/chat/completions`.
pub const CHAT: &[Field] = table![
    GENERATION,
    SAMPLING,
    SAMPLERS,
    OUTPUT_FORMATS,
    LLAMA_SERVER,
    &[
        list("messages", CHAT_MESSAGE),
        yes("max_completion_tokens"),
        yes("top_logprobs"),
        yes("tools"),
        yes("tool_choice"),
        yes("parallel_tool_calls"),
        yes("reasoning_effort"),
        yes("verbose"),
        yes("thinking_token_budget"),
        yes("include_reasoning"),
        yes("separate_reasoning"),
        yes("chat_template"),
        yes("enable_thinking"),
        yes("reasoning"),
        yes("chat_template_kwargs"),
        yes("add_generation_prompt"),
        yes("continue_final_message"),
        skip("safety_identifier", PROVIDER_LABEL),
        skip("prompt_cache_key", PREFIX_CACHE_IS_AUTOMATIC),
        skip("prompt_cache_options", PREFIX_CACHE_IS_AUTOMATIC),
        skip("prompt_cache_retention", PREFIX_CACHE_IS_AUTOMATIC),
        skip("metadata", PROVIDER_LABEL),
        skip("store", "chat completions are not stored; `/v1/responses` are"),
        skip("service_tier", ONE_TIER),
        skip("verbosity", "a hint to models that are trained for it"),
        only("modalities", r#"["text"]"#, TEXT_ONLY),
        no("audio", TEXT_ONLY),
        yes("prediction"),
        no("moderation", NO_MODERATION),
        no("web_search_options", "there is no web search"),
        no("functions", "replaced by `tools`"),
        only("function_call", r#""none""#, "replaced by `tool_choice`"),
        no("documents", "put documents into messages"),
    ],
];

/// Fields of `/v1/completions`.
pub const COMPLETIONS: &[Field] =
    table![GENERATION, SAMPLING, SAMPLERS, OUTPUT_FORMATS, LLAMA_SERVER, &[yes("prompt"), yes("suffix")]];

/// Fields of `/v1/responses`.
pub const RESPONSES: &[Field] = table![
    SAMPLING,
    SAMPLERS,
    &[
        yes("model"),
        list("input", RESPONSE_ITEM),
        yes("instructions"),
        yes("session"),
        yes("continue_final_message"),
        yes("timings_per_token"),
        yes("max_output_tokens"),
        yes("stream"),
        yes("stream_options"),
        yes("top_logprobs"),
        yes("include"),
        yes("tools"),
        yes("tool_choice"),
        yes("parallel_tool_calls"),
        yes("text"),
        yes("reasoning"),
        yes("chat_template_kwargs"),
        yes("truncation"),
        yes("store"),
        yes("background"),
        yes("metadata"),
        yes("user"),
        skip("client_metadata", PROVIDER_LABEL),
        yes("safety_identifier"),
        yes("prompt_cache_key"),
        skip("prompt_cache_options", PREFIX_CACHE_IS_AUTOMATIC),
        skip("prompt_cache_retention", PREFIX_CACHE_IS_AUTOMATIC),
        skip("service_tier", ONE_TIER),
        skip("max_tool_calls", "limits calls of hosted tools, of which there are none"),
        yes("previous_response_id"),
        yes("conversation"),
        no("prompt", "there are no stored prompts; send `instructions` and `input`"),
        no("context_management", CONVERSATION_AS_SENT),
        no("moderation", NO_MODERATION),
    ],
];

/// Fields of `/v1/responses/compact`.
pub(crate) const COMPACT: &[Field] = &[
    yes("model"),
    list("input", RESPONSE_ITEM),
    yes("instructions"),
    yes("previous_response_id"),
    skip("prompt_cache_key", PREFIX_CACHE_IS_AUTOMATIC),
    skip("prompt_cache_options", PREFIX_CACHE_IS_AUTOMATIC),
    skip("prompt_cache_retention", PREFIX_CACHE_IS_AUTOMATIC),
    skip("service_tier", ONE_TIER),
];

/// Fields of a `response.create` message of a WebSocket.
pub(crate) const SOCKET: &[Field] = table![RESPONSES, &[yes("type"), yes("generate")]];

/// Fields of `POST /v1/conversations`.
pub(crate) const CONVERSATIONS: &[Field] = &[list("items", RESPONSE_ITEM), yes("metadata")];

/// Fields of `POST /v1/conversations/ID`.
pub(crate) const CONVERSATION: &[Field] = &[yes("metadata")];

/// Fields of `POST /v1/conversations/ID/items`.
pub(crate) const CONVERSATION_ITEMS: &[Field] = &[list("items", RESPONSE_ITEM)];

/// Fields of `/v1/embeddings`.
pub const EMBEDDINGS: &[Field] = &[
    yes("model"),
    yes("input"),
    yes("encoding_format"),
    yes("dimensions"),
    yes("truncate"),
    yes("priority"),
    yes("cache_salt"),
    skip("user", PROVIDER_LABEL),
];

use crate::ApiError;
use serde_json::{Map, Value};

/// What happens to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It does what its documentation says.
    Supported,
    /// It is accepted and changes nothing, by contract; why that is right.
    Ignored(&'static str),
    /// A request that sets it gets 400; why.
    Rejected(&'static str),
}

/// A field of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in the body.
    pub name: &'static str,
    /// What happens to it.
    pub class: Class,
}

const fn yes(name: &'static str) -> Field {
    Field { name, class: Class::Supported }
}

const fn skip(name: &'static str, why: &'static str) -> Field {
    Field { name, class: Class::Ignored(why) }
}

const fn no(name: &'static str, why: &'static str) -> Field {
    Field { name, class: Class::Rejected(why) }
}

const LABEL: &str = "a label for the provider's own records; none are kept here";
const MEDIA: &str = "the engine reads and writes text only";
const ONE_TIER: &str = "there is one tier";
const FOUND: &str = "prefixes are found by content; no key is needed to find them";
const AS_SENT: &str = "the conversation is used as it was sent";
const NOT_KEPT: &str = "responses are not kept; send all items in `input`";
const MAX_TOKENS: &str = "it is `max_tokens` here";
const NO_JUDGE: &str = "no model here judges what is said";
const NO_TOOLS: &str = "the engine runs no tools; give functions in `tools` and run them";

/// Fields of `/v1/chat/completions`.
pub const CHAT: &[Field] = &[
    yes("model"),
    yes("messages"),
    yes("session"),
    yes("stream"),
    yes("stream_options"),
    yes("max_tokens"),
    yes("max_completion_tokens"),
    no("max_new_tokens", MAX_TOKENS),
    yes("min_tokens"),
    yes("temperature"),
    yes("top_p"),
    yes("top_k"),
    yes("min_p"),
    yes("n"),
    yes("stop"),
    yes("stop_token_ids"),
    yes("ignore_eos"),
    yes("seed"),
    yes("presence_penalty"),
    yes("frequency_penalty"),
    yes("repetition_penalty"),
    yes("logit_bias"),
    yes("logprobs"),
    yes("top_logprobs"),
    yes("tools"),
    yes("tool_choice"),
    yes("parallel_tool_calls"),
    yes("prompt_logprobs"),
    yes("response_format"),
    yes("reasoning_effort"),
    yes("thinking_token_budget"),
    yes("structured_outputs"),
    yes("guided_json"),
    yes("guided_regex"),
    yes("guided_choice"),
    yes("guided_grammar"),
    no("guided_whitespace_pattern", "white space between pieces of JSON is bounded by the engine"),
    no("guided_decoding_backend", "there is one"),
    yes("chat_template_kwargs"),
    yes("add_generation_prompt"),
    yes("continue_final_message"),
    yes("priority"),
    yes("cache_salt"),
    skip("user", LABEL),
    skip("safety_identifier", LABEL),
    skip("prompt_cache_key", FOUND),
    skip("prompt_cache_options", FOUND),
    skip("prompt_cache_retention", FOUND),
    skip("metadata", LABEL),
    skip("store", "nothing is stored, which is what the default asks for"),
    skip("service_tier", ONE_TIER),
    skip("verbosity", "a hint to models that were trained to take it"),
    no("modalities", MEDIA),
    no("audio", MEDIA),
    no("prediction", "no model here takes a predicted answer"),
    no("moderation", NO_JUDGE),
    no("web_search_options", "the engine reaches no network"),
    no("functions", "replaced by `tools`"),
    no("function_call", "replaced by `tool_choice`"),
];

/// Fields of `/v1/completions`.
pub const COMPLETIONS: &[Field] = &[
    yes("model"),
    yes("prompt"),
    yes("session"),
    yes("stream"),
    yes("stream_options"),
    yes("max_tokens"),
    no("max_new_tokens", MAX_TOKENS),
    yes("min_tokens"),
    yes("temperature"),
    yes("top_p"),
    yes("top_k"),
    yes("min_p"),
    yes("n"),
    yes("stop"),
    yes("stop_token_ids"),
    yes("ignore_eos"),
    yes("seed"),
    yes("presence_penalty"),
    yes("frequency_penalty"),
    yes("repetition_penalty"),
    yes("logit_bias"),
    yes("logprobs"),
    yes("echo"),
    yes("prompt_logprobs"),
    yes("response_format"),
    yes("structured_outputs"),
    yes("guided_json"),
    yes("guided_regex"),
    yes("guided_choice"),
    yes("guided_grammar"),
    no("guided_whitespace_pattern", "white space between pieces of JSON is bounded by the engine"),
    no("guided_decoding_backend", "there is one"),
    yes("priority"),
    yes("cache_salt"),
    skip("user", LABEL),
    no("suffix", "no model here fills in the middle"),
    no("best_of", "ask for `n` and choose"),
];

/// Fields of `/v1/responses`.
pub const RESPONSES: &[Field] = &[
    yes("model"),
    yes("input"),
    yes("instructions"),
    yes("max_output_tokens"),
    yes("stream"),
    yes("stream_options"),
    yes("temperature"),
    yes("top_p"),
    yes("top_k"),
    yes("min_p"),
    yes("seed"),
    yes("stop"),
    yes("stop_token_ids"),
    yes("presence_penalty"),
    yes("frequency_penalty"),
    yes("repetition_penalty"),
    yes("logit_bias"),
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
    yes("priority"),
    yes("cache_salt"),
    skip("metadata", LABEL),
    skip("user", LABEL),
    skip("safety_identifier", LABEL),
    skip("prompt_cache_key", FOUND),
    skip("prompt_cache_options", FOUND),
    skip("prompt_cache_retention", FOUND),
    skip("service_tier", ONE_TIER),
    skip("max_tool_calls", "bounds calls of the provider's own tools, of which there are none"),
    no("previous_response_id", NOT_KEPT),
    no("conversation", NOT_KEPT),
    no("prompt", "no prompts are kept here; send `instructions` and `input`"),
    no("context_management", AS_SENT),
    no("moderation", NO_JUDGE),
];

/// Fields of `/v1/messages`.
pub const MESSAGES: &[Field] = &[
    yes("model"),
    yes("messages"),
    yes("system"),
    yes("max_tokens"),
    yes("stream"),
    yes("temperature"),
    yes("top_p"),
    yes("top_k"),
    yes("stop_sequences"),
    yes("tools"),
    yes("tool_choice"),
    yes("thinking"),
    yes("output_config"),
    skip("metadata", LABEL),
    skip("service_tier", ONE_TIER),
    skip("speed", ONE_TIER),
    skip("cache_control", FOUND),
    no("diagnostics", "messages are not kept, so none can be compared with an earlier one"),
    no("inference_geo", "the server runs where it runs"),
    no("container", NO_TOOLS),
    no("mcp_servers", NO_TOOLS),
    no("context_management", AS_SENT),
];

/// Fields of `/v1/messages/count_tokens`.
pub const COUNT_TOKENS: &[Field] = &[
    yes("model"),
    yes("messages"),
    yes("system"),
    yes("tools"),
    yes("tool_choice"),
    yes("thinking"),
    yes("output_config"),
    skip("speed", ONE_TIER),
    skip("cache_control", FOUND),
    no("mcp_servers", NO_TOOLS),
    no("context_management", AS_SENT),
];

/// Fields of `/v1/embeddings`.
pub const EMBEDDINGS: &[Field] = &[
    yes("model"),
    yes("input"),
    yes("encoding_format"),
    yes("dimensions"),
    yes("priority"),
    yes("cache_salt"),
    skip("user", LABEL),
];

/// Fields of `POST /v1/sessions`.
pub const SESSIONS: &[Field] = &[yes("model"), yes("messages"), yes("prompt"), yes("ttl")];

/// Fields of `POST /v1/sessions/ID/fork`.
pub const FORK: &[Field] = &[yes("n"), yes("at")];

/// Fields of `POST /v1/sessions/ID/rewind`.
pub const REWIND: &[Field] = &[yes("to")];

/// Fields of `/tokenize`.
pub const TOKENIZE: &[Field] = &[
    yes("model"),
    yes("prompt"),
    yes("add_special_tokens"),
    yes("messages"),
    yes("tools"),
    yes("add_generation_prompt"),
    yes("continue_final_message"),
    yes("chat_template_kwargs"),
    yes("return_token_strs"),
];

/// Fields of `/detokenize`.
pub const DETOKENIZE: &[Field] = &[yes("model"), yes("tokens")];

/// Refuses a body that has a field which is unknown or not offered. `null` is the same as absent.
pub fn classify(table: &[Field], body: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, value) in body {
        match table.iter().find(|field| field.name == name).map(|field| field.class) {
            None => return Err(ApiError::unknown_field(name)),
            Some(Class::Rejected(why)) if !value.is_null() => return Err(ApiError::unsupported(name, why)),
            Some(_) => {}
        }
    }
    Ok(())
}

//! Tables of request fields, one per kind of body: supported, ignored by contract, or rejected. Tables
//! with fields in common are joined from groups.
//!
//! The single source for parsing (which fields are stored), validation and OpenAPI.
//! `tests/fields.rs` checks every entry against the parsers.

use crate::request::field::{Field, list, no, only, skip, yes};

/// Fields of a chat message. Unknown scalar fields reach the template, too.
const MESSAGE: &[&str] = &[
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking",
    "tool_plan",
    "refusal",
    "annotations",
    "audio",
    "function_call",
];

/// Fields of the `input` items of `/v1/responses`.
const ITEM: &[&str] = &[
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

/// Fields of an Anthropic message.
const TURN: &[&str] = &["role", "content"];
const POOLED: &str = "there are no server slots; requests share the KV cache";
const LABEL: &str = "a label for the provider's records, which this server does not have";
const MEDIA: &str = "the engine reads and writes text only";
const ONE_TIER: &str = "there is one service tier";
const FOUND: &str = "the prefix cache finds prefixes by their content";
const AS_SENT: &str = "the conversation is used as sent";
const MAX_TOKENS: &str = "use `max_tokens`";
const NO_BEAMS: &str = "there is no beam search";
const NO_ADAPTERS: &str = "one model is served, without adapters";
const NO_MODERATION: &str = "there is no moderation model";
const NO_TOOLS: &str = "the server runs no tools; offer functions in `tools` and run them in the client";

/// Joins groups of fields to one table.
macro_rules! table {
    ($($group:expr),+ $(,)?) => {{
        const GROUPS: &[&[Field]] = &[$($group),+];
        const ALL: [Field; total(GROUPS)] = joined(GROUPS);
        &ALL
    }};
}

const fn total(groups: &[&[Field]]) -> usize {
    let (mut n, mut group) = (0, 0);
    while group < groups.len() {
        n += groups[group].len();
        group += 1;
    }
    n
}

/// `N` must be the [`total`] of the groups.
const fn joined<const N: usize>(groups: &[&[Field]]) -> [Field; N] {
    let mut all = [yes(""); N];
    let (mut n, mut group) = (0, 0);
    while group < groups.len() {
        let mut i = 0;
        while i < groups[group].len() {
            all[n] = groups[group][i];
            (n, i) = (n + 1, i + 1);
        }
        group += 1;
    }
    all
}

/// Sampling and scheduling, of OpenAI's three ways to generate.
const SAMPLING: &[Field] = &[
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
    yes("priority"),
    yes("cache_salt"),
    yes("speculation"),
];

/// llama.cpp's samplers and their order.
pub(crate) const SAMPLERS: &[Field] = &[
    yes("typical_p"),
    yes("top_n_sigma"),
    yes("xtc_probability"),
    yes("xtc_threshold"),
    yes("dynatemp_range"),
    yes("dynatemp_exponent"),
    yes("repeat_penalty"),
    yes("repeat_last_n"),
    yes("dry_multiplier"),
    yes("dry_base"),
    yes("dry_allowed_length"),
    yes("dry_penalty_last_n"),
    yes("dry_sequence_breakers"),
    yes("mirostat"),
    yes("mirostat_tau"),
    yes("mirostat_eta"),
    yes("min_keep"),
    yes("samplers"),
];

/// Structured output, in the spellings of vLLM, SGLang and llama.cpp.
const FORMATS: &[Field] = &[
    yes("response_format"),
    yes("regex"),
    yes("ebnf"),
    yes("grammar"),
    yes("json_schema"),
    yes("structured_outputs"),
    yes("guided_json"),
    yes("guided_regex"),
    yes("guided_choice"),
    yes("guided_grammar"),
    no("guided_whitespace_pattern", "white space between pieces of JSON is bounded by the engine"),
    skip("guided_decoding_backend", "there is one grammar backend"),
];

/// Fields of every generation of llama.cpp's server.
const LLAMA_SERVER: &[Field] = &[
    yes("n_predict"),
    yes("timings_per_token"),
    skip("cache_prompt", FOUND),
    skip("id_slot", POOLED),
    yes("return_progress"),
    yes("post_sampling_probs"),
];

/// What chats and completions have in common, beside the groups above.
const GENERATION: &[Field] = &[
    yes("model"),
    yes("session"),
    yes("stream"),
    yes("stream_options"),
    yes("max_tokens"),
    no("max_new_tokens", MAX_TOKENS),
    yes("min_tokens"),
    yes("n"),
    yes("stop_regex"),
    yes("ignore_eos"),
    yes("logprobs"),
    yes("prompt_logprobs"),
    yes("echo"),
    yes("return_token_ids"),
    yes("return_tokens_as_token_ids"),
    yes("skip_special_tokens"),
    skip("spaces_between_special_tokens", "the tokenizer places spaces"),
    yes("include_stop_str_in_output"),
    yes("bad_words"),
    yes("allowed_token_ids"),
    yes("truncate_prompt_tokens"),
    yes("add_special_tokens"),
    skip("user", LABEL),
    only("best_of", "1", "set `n` and select an answer in the client"),
    no("use_beam_search", NO_BEAMS),
    only("length_penalty", "1", NO_BEAMS),
    no("lora_path", NO_ADAPTERS),
];

/// Fields of `/v1/chat/completions`.
pub const CHAT: &[Field] = table![
    GENERATION,
    SAMPLING,
    SAMPLERS,
    FORMATS,
    LLAMA_SERVER,
    &[
        list("messages", MESSAGE),
        yes("max_completion_tokens"),
        yes("top_logprobs"),
        yes("tools"),
        yes("tool_choice"),
        yes("parallel_tool_calls"),
        yes("reasoning_effort"),
        yes("thinking_token_budget"),
        yes("include_reasoning"),
        yes("separate_reasoning"),
        yes("chat_template"),
        yes("enable_thinking"),
        yes("reasoning"),
        yes("chat_template_kwargs"),
        yes("add_generation_prompt"),
        yes("continue_final_message"),
        skip("safety_identifier", LABEL),
        skip("prompt_cache_key", FOUND),
        skip("prompt_cache_options", FOUND),
        skip("prompt_cache_retention", FOUND),
        skip("metadata", LABEL),
        skip("store", "chat completions are not stored; `/v1/responses` are"),
        skip("service_tier", ONE_TIER),
        skip("verbosity", "a hint to models that are trained for it"),
        only("modalities", r#"["text"]"#, MEDIA),
        no("audio", MEDIA),
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
    table![GENERATION, SAMPLING, SAMPLERS, FORMATS, LLAMA_SERVER, &[yes("prompt"), yes("suffix")]];

/// Fields of `/v1/responses`.
pub const RESPONSES: &[Field] = table![
    SAMPLING,
    SAMPLERS,
    &[
        yes("model"),
        list("input", ITEM),
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
        skip("client_metadata", LABEL),
        yes("safety_identifier"),
        yes("prompt_cache_key"),
        skip("prompt_cache_options", FOUND),
        skip("prompt_cache_retention", FOUND),
        skip("service_tier", ONE_TIER),
        skip("max_tool_calls", "limits calls of hosted tools, of which there are none"),
        yes("previous_response_id"),
        yes("conversation"),
        no("prompt", "there are no stored prompts; send `instructions` and `input`"),
        no("context_management", AS_SENT),
        no("moderation", NO_MODERATION),
    ],
];

/// Fields of `/v1/messages`.
pub const MESSAGES: &[Field] = &[
    yes("model"),
    list("messages", TURN),
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
    yes("output_format"),
    skip("metadata", LABEL),
    skip("service_tier", ONE_TIER),
    skip("speed", ONE_TIER),
    yes("cache_control"),
    skip("diagnostics", "messages are not stored, so none is compared with an earlier one"),
    only("inference_geo", r#""global""#, "there is no choice of a region"),
    no("container", NO_TOOLS),
    no("mcp_servers", NO_TOOLS),
    yes("context_management"),
    yes("thread"),
    yes("speculation"),
];

/// Fields of `/v1/messages/count_tokens`.
pub const COUNT_TOKENS: &[Field] = &[
    yes("model"),
    list("messages", TURN),
    yes("system"),
    yes("tools"),
    yes("tool_choice"),
    yes("thinking"),
    yes("output_config"),
    yes("output_format"),
    skip("speed", ONE_TIER),
    yes("cache_control"),
    no("mcp_servers", NO_TOOLS),
    yes("context_management"),
    yes("thread"),
];

/// Fields of `/v1/embeddings`.
pub const EMBEDDINGS: &[Field] = &[
    yes("model"),
    yes("input"),
    yes("encoding_format"),
    yes("dimensions"),
    yes("truncate"),
    yes("priority"),
    yes("cache_salt"),
    skip("user", LABEL),
];

/// What llama.cpp's `/completion` and `/infill` have in common.
const LLAMA_GENERATION: &[Field] = &[
    yes("model"),
    yes("prompt"),
    yes("temperature"),
    yes("top_k"),
    yes("top_p"),
    yes("min_p"),
    yes("seed"),
    yes("stop"),
    yes("stream"),
    yes("ignore_eos"),
    yes("presence_penalty"),
    yes("frequency_penalty"),
    yes("logit_bias"),
    yes("n_probs"),
    yes("n_keep"),
    yes("grammar"),
    yes("json_schema"),
    yes("return_tokens"),
    yes("response_fields"),
];

/// Fields of llama.cpp's `/completion`.
pub const LLAMA_COMPLETION: &[Field] = table![LLAMA_GENERATION, SAMPLERS, LLAMA_SERVER];

/// Fields of llama.cpp's `/infill`.
pub const INFILL: &[Field] = table![
    LLAMA_GENERATION,
    SAMPLERS,
    LLAMA_SERVER,
    &[yes("input_prefix"), yes("input_suffix"), list("input_extra", &["filename", "text"])],
];

/// Fields of llama.cpp's `/embedding`.
pub const LLAMA_EMBEDDING: &[Field] =
    &[yes("model"), yes("content"), yes("input"), only("embd_normalize", "2", "vectors have length 1")];

/// Fields of llama.cpp's `/apply-template`.
pub const APPLY_TEMPLATE: &[Field] = &[
    yes("model"),
    list("messages", MESSAGE),
    yes("tools"),
    yes("tool_choice"),
    yes("add_generation_prompt"),
    yes("continue_final_message"),
    yes("chat_template_kwargs"),
    yes("chat_template"),
    yes("reasoning_effort"),
    yes("enable_thinking"),
];

/// Fields of an Ollama message.
const OLLAMA_MESSAGE: &[&str] =
    &["role", "content", "thinking", "images", "tool_calls", "tool_name", "name", "tool_call_id"];
const LOADED: &str = "the model stays loaded";

/// Fields of Ollama's `/api/chat`.
pub const OLLAMA_CHAT: &[Field] = &[
    yes("model"),
    list("messages", OLLAMA_MESSAGE),
    yes("tools"),
    yes("format"),
    yes("options"),
    yes("stream"),
    yes("think"),
    yes("logprobs"),
    yes("top_logprobs"),
    yes("keep_alive"),
    skip("truncate", "a conversation that is too long is refused"),
    yes("shift"),
];

/// Fields of Ollama's `/api/generate`.
pub const OLLAMA_GENERATE: &[Field] = &[
    yes("model"),
    yes("prompt"),
    yes("system"),
    yes("raw"),
    yes("format"),
    yes("options"),
    yes("stream"),
    yes("think"),
    yes("logprobs"),
    yes("top_logprobs"),
    no("suffix", "use `suffix` of `/v1/completions`"),
    yes("images"),
    no("template", "the model's own template is used; `raw` uses none"),
    yes("context"),
    yes("keep_alive"),
    skip("truncate", "a prompt that is too long is refused"),
    yes("shift"),
];

/// Fields of Ollama's `/api/embed`.
pub const OLLAMA_EMBED: &[Field] = &[
    yes("model"),
    yes("input"),
    yes("truncate"),
    yes("dimensions"),
    yes("options"),
    skip("keep_alive", LOADED),
];

/// Fields of Ollama's older `/api/embeddings`.
pub const OLLAMA_EMBEDDINGS: &[Field] =
    &[yes("model"), yes("prompt"), yes("options"), skip("keep_alive", LOADED)];

/// Fields of Ollama's `/api/show`.
pub const OLLAMA_SHOW: &[Field] =
    &[yes("model"), yes("name"), skip("verbose", "all details are always shown")];

const HUB_ACCESS: &str = "the hub is reached over TLS, with the token of HF_TOKEN";
const OF_REQUESTS: &str = "one model is served as it is; send it with each request";

/// Fields of Ollama's `/api/pull`.
pub const OLLAMA_PULL: &[Field] = &[
    yes("model"),
    yes("name"),
    yes("stream"),
    skip("insecure", HUB_ACCESS),
    skip("username", HUB_ACCESS),
    skip("password", HUB_ACCESS),
];

/// Fields of Ollama's `/api/push`.
pub const OLLAMA_PUSH: &[Field] = OLLAMA_PULL;

/// Fields of Ollama's `/api/create`.
pub const OLLAMA_CREATE: &[Field] = &[
    yes("model"),
    yes("name"),
    yes("from"),
    yes("stream"),
    no("system", OF_REQUESTS),
    no("parameters", OF_REQUESTS),
    no("messages", OF_REQUESTS),
    no("template", "`kvasir serve` takes --chat-template FILE"),
    no("quantize", "`kvasir convert MODEL OUT --dtype TYPE` quantizes"),
    no("files", "files are served where they are: kvasir serve FILE"),
    no("adapters", NO_ADAPTERS),
    no("modelfile", "there are no Modelfiles; `kvasir serve` has options for what they set"),
    no("license", "models are files, which name their license"),
];

/// Fields of Ollama's `/api/delete`.
pub const OLLAMA_DELETE: &[Field] = &[yes("model"), yes("name")];

/// Fields of Ollama's `/api/copy`.
pub const OLLAMA_COPY: &[Field] = &[yes("source"), yes("destination")];

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
    skip("user", LABEL),
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
pub const SCORE: &[Field] =
    &[yes("model"), yes("text_1"), yes("text_2"), yes("method"), yes("instruction"), skip("user", LABEL)];

/// Fields of `POST /v1/sessions`.
pub const SESSIONS: &[Field] = &[yes("model"), list("messages", MESSAGE), yes("prompt"), yes("ttl")];
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
    list("messages", MESSAGE),
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

/// Fields of `/v1/responses/compact`.
pub(crate) const COMPACT: &[Field] = &[
    yes("model"),
    list("input", ITEM),
    yes("instructions"),
    yes("previous_response_id"),
    skip("prompt_cache_key", FOUND),
    skip("prompt_cache_options", FOUND),
    skip("prompt_cache_retention", FOUND),
    skip("service_tier", ONE_TIER),
];

/// Fields of a `response.create` message of a WebSocket.
pub(crate) const SOCKET: &[Field] = table![RESPONSES, &[yes("type"), yes("generate")]];

/// Fields of `POST /v1/conversations`.
pub(crate) const CONVERSATIONS: &[Field] = &[list("items", ITEM), yes("metadata")];
/// Fields of `POST /v1/conversations/ID`.
pub(crate) const CONVERSATION: &[Field] = &[yes("metadata")];
/// Fields of `POST /v1/conversations/ID/items`.
pub(crate) const CONVERSATION_ITEMS: &[Field] = &[list("items", ITEM)];

//! Groups of fields that several tables share.

use crate::request::field::{Field, no, only, skip, yes};
use crate::request::fields::reasons::{
    NO_ADAPTERS, NO_BEAM_SEARCH, PREFIX_CACHE_IS_AUTOMATIC, PROVIDER_LABEL, USE_MAX_TOKENS,
};

/// Fields of a chat message. Unknown scalar fields reach the template, too.
pub(super) const CHAT_MESSAGE: &[&str] = &[
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

/// Sampling and scheduling fields of chats, completions and responses.
pub(super) const SAMPLING: &[Field] = &[
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

/// Parameters of llama.cpp's samplers, and their order.
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

/// Structured output, under the names of vLLM, SGLang and llama.cpp.
pub(super) const OUTPUT_FORMATS: &[Field] = &[
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

/// Fields of all generation routes of llama.cpp's server.
pub(super) const LLAMA_SERVER: &[Field] = &[
    yes("n_predict"),
    yes("timings_per_token"),
    skip("cache_prompt", PREFIX_CACHE_IS_AUTOMATIC),
    yes("id_slot"),
    yes("return_progress"),
    yes("post_sampling_probs"),
];

/// Other fields that chats and completions share.
pub(super) const GENERATION: &[Field] = &[
    yes("model"),
    yes("session"),
    yes("stream"),
    yes("stream_options"),
    yes("max_tokens"),
    no("max_new_tokens", USE_MAX_TOKENS),
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
    skip("user", PROVIDER_LABEL),
    only("best_of", "1", "set `n` and select an answer in the client"),
    no("use_beam_search", NO_BEAM_SEARCH),
    only("length_penalty", "1", NO_BEAM_SEARCH),
    no("lora_path", NO_ADAPTERS),
];

//! Fields of the routes that only llama.cpp's server has.

use crate::request::field::{Field, list, only, yes};
use crate::request::fields::groups::{CHAT_MESSAGE, LLAMA_SERVER, SAMPLERS};
use crate::request::fields::table::table;

/// Fields that llama.cpp's `/completion` and `/infill` share.
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
    list("messages", CHAT_MESSAGE),
    yes("tools"),
    yes("tool_choice"),
    yes("add_generation_prompt"),
    yes("continue_final_message"),
    yes("chat_template_kwargs"),
    yes("chat_template"),
    yes("reasoning_effort"),
    yes("enable_thinking"),
];

/// Fields of `POST /slots/ID`.
pub(crate) const SLOT_ACTION: &[Field] = &[yes("filename")];

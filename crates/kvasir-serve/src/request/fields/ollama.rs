//! Fields of Ollama's API.

use crate::request::field::{Field, list, no, skip, yes};
use crate::request::fields::reasons::NO_ADAPTERS;

/// Fields of an Ollama message.
const OLLAMA_MESSAGE: &[&str] =
    &["role", "content", "thinking", "images", "tool_calls", "tool_name", "name", "tool_call_id"];

const ALWAYS_LOADED: &str = "the model stays loaded";

const HUB_ACCESS: &str = "the hub is reached over TLS, with the token of HF_TOKEN";

const SET_PER_REQUEST: &str = "one model is served as it is; send it with each request";

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
    skip("keep_alive", ALWAYS_LOADED),
];

/// Fields of Ollama's older `/api/embeddings`.
pub const OLLAMA_EMBEDDINGS: &[Field] =
    &[yes("model"), yes("prompt"), yes("options"), skip("keep_alive", ALWAYS_LOADED)];

/// Fields of Ollama's `/api/show`.
pub const OLLAMA_SHOW: &[Field] =
    &[yes("model"), yes("name"), skip("verbose", "all details are always shown")];

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
    no("system", SET_PER_REQUEST),
    no("parameters", SET_PER_REQUEST),
    no("messages", SET_PER_REQUEST),
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

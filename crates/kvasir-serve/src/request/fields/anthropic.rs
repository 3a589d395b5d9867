//! Fields of Anthropic's API.

use crate::request::field::{Field, list, no, only, skip, yes};
use crate::request::fields::reasons::{NO_TOOLS, ONE_TIER, PROVIDER_LABEL};

/// Fields of an Anthropic message.
const ANTHROPIC_MESSAGE: &[&str] = &["role", "content"];

/// Fields of `/v1/messages`.
pub const MESSAGES: &[Field] = &[
    yes("model"),
    list("messages", ANTHROPIC_MESSAGE),
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
    skip("metadata", PROVIDER_LABEL),
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
    list("messages", ANTHROPIC_MESSAGE),
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

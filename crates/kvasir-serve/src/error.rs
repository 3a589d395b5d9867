//! API errors: HTTP status plus the error object of the client's API.

use kvasir_chat::ChatError;
use serde_json::{Value, json};
use std::fmt;

/// OpenAI's code of a prompt, or of a prompt and its answer, beyond the context.
const CONTEXT_EXCEEDED: &str = "context_length_exceeded";

/// An API error: HTTP status and the fields of OpenAI's error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Human-readable message.
    pub message: String,
    /// Name of the offending parameter.
    pub param: Option<String>,
    /// Machine-readable error code.
    pub code: Option<&'static str>,
    /// Seconds for the `retry-after` header.
    pub retry_after: Option<u32>,
    /// Methods for the `allow` header.
    pub allow: Option<String>,
    /// Structured details, where the endpoint's API defines them.
    pub detail: Option<Detail>,
}

/// Details that some clients parse in order to recover by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Prompt and answer exceed the context length.
    Overflow(Overflow),
    /// Anthropic's threads are not supported.
    NoThreads,
}

/// Sizes of a request that exceeds the context length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Prompt tokens.
    pub prompt: u32,
    /// Requested answer tokens; `None` where the prompt alone is too long.
    pub requested: Option<u32>,
    /// Context length in tokens.
    pub limit: u32,
}

impl Overflow {
    /// Anthropic's wording, which its clients parse in order to retry with less.
    fn to_anthropic(self) -> String {
        let Self { prompt, requested, limit } = self;
        match requested {
            Some(requested) => format!(
                "input length and `max_tokens` exceed context limit: {prompt} + {requested} > {limit}, decrease input length or `max_tokens` and try again"
            ),
            None => format!("prompt is too long: {prompt} tokens > {limit} maximum"),
        }
    }
}

impl ApiError {
    fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            allow: None,
            detail: None,
        }
    }

    /// 400: invalid value of one parameter.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("invalid_value"), ..Self::new(400, message) }
    }

    /// 400: unknown field.
    pub fn unknown_field(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("unknown field `{param}`");
        Self { param: Some(param), code: Some("unknown_parameter"), ..Self::new(400, message) }
    }

    /// 400: known but unsupported field.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        let message = format!("`{param}` is not supported: {why}");
        Self { param: Some(param), code: Some("unsupported_parameter"), ..Self::new(400, message) }
    }

    /// 400: invalid body.
    pub fn body(message: impl Into<String>) -> Self {
        Self { code: Some("invalid_json"), ..Self::new(400, message) }
    }

    /// 400: prompt and answer exceed the context length, with the engine's message.
    pub fn too_long(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some(CONTEXT_EXCEEDED), ..Self::new(400, message) }
    }

    /// 400: prompt and answer exceed the context length, with their sizes.
    pub fn overflow(param: &str, overflow: Overflow) -> Self {
        let Overflow { prompt, requested, .. } = overflow;
        let message = match requested {
            Some(requested) => format!("the prompt has {prompt} tokens and {requested} are requested"),
            None => format!("the prompt has {prompt} tokens"),
        };
        Self::beyond_context(param, message, overflow)
    }

    /// 400: what the text `size` describes exceeds the context length. Clients look for these words
    /// of llama.cpp's server and of OpenAI's.
    pub(crate) fn beyond_context(param: &str, size: impl fmt::Display, overflow: Overflow) -> Self {
        let message = format!(
            "{size}, which exceeds the available context size: the maximum context length is {} tokens, with \
             the answer",
            overflow.limit
        );
        Self { detail: Some(Detail::Overflow(overflow)), ..Self::too_long(param, message) }
    }

    /// Prefixes a context overflow with the words by which clients of llama.cpp's server recognize
    /// it. Other errors are unchanged.
    pub(crate) fn for_embedding_input(self) -> Self {
        if self.code != Some(CONTEXT_EXCEEDED) {
            return self;
        }
        Self { message: format!("the input is too large: {}", self.message), ..self }
    }

    /// 400: Anthropic's threads are unsupported, in the form that makes its SDKs' tool runners
    /// continue without them.
    pub fn no_threads() -> Self {
        let why = "send the whole conversation in `messages`";
        Self { detail: Some(Detail::NoThreads), ..Self::unsupported("thread", why) }
    }

    /// 401: missing or wrong API key.
    pub fn unauthorized() -> Self {
        Self { code: Some("invalid_api_key"), ..Self::new(401, "a valid API key is required") }
    }

    /// 403: the `host` header names another server (DNS rebinding).
    pub fn unknown_host(host: &str) -> Self {
        let why = format!(
            "a server without API keys accepts host names of this machine and of private networks only \
             (DNS rebinding), not `{host}`; allow it with --allowed-origins http://{host}, or set --api-key"
        );
        Self { param: Some("host".into()), code: Some("unknown_host"), ..Self::new(403, why) }
    }

    /// 403: the caller's key, or the server's options, do not allow it.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { code: Some("forbidden"), ..Self::new(403, message) }
    }

    /// 404: something named in the path or body does not exist.
    pub fn not_found(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("not_found"), ..Self::new(404, message) }
    }

    /// 405: the route takes other methods, which `allow` lists.
    pub fn wrong_method(message: impl Into<String>, allow: String) -> Self {
        Self {
            param: Some("method".into()),
            code: Some("method_not_allowed"),
            allow: Some(allow),
            ..Self::new(405, message)
        }
    }

    /// 409: the resource is busy with another request.
    pub fn conflict(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("conflict"), ..Self::new(409, message) }
    }

    /// 408: the client stalled in the middle of its request.
    pub fn too_slow() -> Self {
        Self {
            code: Some("request_timeout"),
            ..Self::new(408, "the rest of the body did not arrive in time")
        }
    }

    /// 413: the body exceeds `limit` bytes.
    pub fn too_large(limit: usize) -> Self {
        Self {
            code: Some("body_too_large"),
            ..Self::new(413, format!("a body may have at most {limit} bytes"))
        }
    }

    /// 429: a rate or admission limit.
    pub fn too_many(message: impl Into<String>) -> Self {
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(1), ..Self::new(429, message) }
    }

    /// 503: temporarily unavailable.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Some("unavailable"), retry_after: Some(1), ..Self::new(503, message) }
    }

    /// 501: not available with this server's options.
    pub fn not_offered(message: impl Into<String>) -> Self {
        Self { code: Some("not_offered"), ..Self::new(501, message) }
    }

    /// 500: the request failed through no fault of the client.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { code: Some("internal_error"), ..Self::new(500, message) }
    }

    /// Renames the field `from` of a translated body, or a field within it, to the client's `to`.
    /// Errors about other fields are unchanged.
    pub(crate) fn renamed(self, from: &str, to: &str) -> Self {
        let within = self.param.as_deref().and_then(|param| param.strip_prefix(from));
        let Some(within) = within.filter(|rest| rest.is_empty() || rest.starts_with(['.', '['])) else {
            return self;
        };
        let param = Some(format!("{to}{within}"));
        let message = ['`', '.', '['].iter().fold(self.message, |message, end| {
            message.replace(&format!("`{from}{end}"), &format!("`{to}{end}"))
        });
        Self { param, message, ..self }
    }

    /// The error `type`: OpenAI's for the status, but llama.cpp's for a prompt beyond the context,
    /// which OpenAI's clients know by its code.
    pub fn kind(&self) -> &'static str {
        match self.status {
            400 if self.code == Some(CONTEXT_EXCEEDED) => "exceed_context_size_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// `{"error": {message, type, param, code}}`; for a prompt beyond the context with llama.cpp's
    /// `n_prompt_tokens` and `n_ctx`.
    pub fn to_json(&self) -> Value {
        let mut error =
            json!({"message": self.message, "type": self.kind(), "param": self.param, "code": self.code});
        self.put_sizes(&mut error);
        json!({"error": error})
    }

    fn put_sizes(&self, error: &mut Value) {
        if let Some(Detail::Overflow(Overflow { prompt, limit, .. })) = self.detail {
            error["n_prompt_tokens"] = prompt.into();
            error["n_ctx"] = limit.into();
        }
    }
}

impl ApiError {
    /// llama.cpp's error object, `{"error": {code, message, type}}` with the HTTP status as the
    /// code, and `param`.
    pub fn to_llama_cpp(&self) -> Value {
        let kind = match self.status {
            501 => "not_supported_error",
            503 => "unavailable_error",
            _ => self.kind(),
        };
        let mut error =
            json!({"code": self.status, "message": self.message, "type": kind, "param": self.param});
        self.put_sizes(&mut error);
        json!({"error": error})
    }
}

impl ApiError {
    /// Anthropic's error object: `{"type": "error", "error": {type, message, ..}}`.
    pub fn to_anthropic(&self) -> Value {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        let message = match self.detail {
            Some(Detail::Overflow(overflow)) => overflow.to_anthropic(),
            _ => self.message.clone(),
        };
        let mut error = json!({"type": kind, "message": message, "param": self.param, "code": self.code});
        if self.detail == Some(Detail::NoThreads) {
            error["details"] = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
        }
        json!({"type": "error", "error": error})
    }
}

impl ApiError {
    /// Ollama's error object: `{"error": message}`.
    pub fn to_ollama(&self) -> Value {
        json!({"error": self.message})
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        let text = error.to_string();
        match error {
            ChatError::Invalid { parameter, message } => Self::param(parameter, message),
            ChatError::Unsupported { parameter, reason } => Self::unsupported(parameter, reason),
            _ => Self::not_offered(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_field_has_its_new_name_in_the_message() {
        let error = |param: &str| ApiError::param(param, format!("`{param}` clashes with `inputs`"));
        for (param, renamed) in [("input", "prompt"), ("input[2]", "prompt[2]"), ("input.a", "prompt.a")] {
            assert_eq!(error(param).renamed("input", "prompt"), error(renamed));
        }
        assert_eq!(error("inputs").renamed("input", "prompt"), error("inputs"));
    }
}

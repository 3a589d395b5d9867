use serde_json::{Value, json};
use std::fmt;

/// What a client gets instead of an answer: an HTTP status and OpenAI's error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// What went wrong, for a person.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// What went wrong, for a program.
    pub code: Option<&'static str>,
    /// Seconds after which trying again makes sense.
    pub retry_after: Option<u32>,
    /// More for a program, where the endpoint's API has a form for it.
    pub detail: Option<Detail>,
}

/// What some clients parse to go on by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// By how much prompt and answer exceed the context.
    Overflow(Overflow),
    /// Conversations are not kept under an id: Anthropic's threads.
    NoThreads,
}

/// A request that does not fit the model's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens that the answer may have; none where the prompt alone is too long.
    pub asked: Option<u32>,
    /// Tokens of the context.
    pub limit: u32,
}

impl Overflow {
    /// In Anthropic's words, which its clients parse to try again with less.
    fn to_anthropic(self) -> String {
        let Self { prompt, asked, limit } = self;
        match asked {
            Some(asked) => format!(
                "input length and `max_tokens` exceed context limit: {prompt} + {asked} > {limit}, decrease input length or `max_tokens` and try again"
            ),
            None => format!("prompt is too long: {prompt} tokens > {limit} maximum"),
        }
    }
}

impl ApiError {
    fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after: None, detail: None }
    }

    /// 400 about one parameter.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("invalid_value"), ..Self::new(400, message) }
    }

    /// 400 about a field that this endpoint does not have.
    pub fn unknown_field(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("unknown field `{param}`");
        Self { param: Some(param), code: Some("unknown_parameter"), ..Self::new(400, message) }
    }

    /// 400 about a field that is known and not offered.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        let message = format!("`{param}` is not supported: {why}");
        Self { param: Some(param), code: Some("unsupported_parameter"), ..Self::new(400, message) }
    }

    /// 400 about the body as a whole.
    pub fn body(message: impl Into<String>) -> Self {
        Self { code: Some("invalid_json"), ..Self::new(400, message) }
    }

    /// 400 because prompt and answer do not fit the model, with what the engine says of it.
    pub fn too_long(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("context_length_exceeded"), ..Self::new(400, message) }
    }

    /// 400 because prompt and answer do not fit the model, by so much.
    pub fn overflow(param: &str, overflow: Overflow) -> Self {
        let Overflow { prompt, asked, limit } = overflow;
        let message = match asked {
            Some(asked) => format!(
                "the prompt has {prompt} tokens and {asked} are asked for; the model takes {limit} together"
            ),
            None => format!("the prompt has {prompt} tokens; the model takes {limit} with the answer"),
        };
        Self { detail: Some(Detail::Overflow(overflow)), ..Self::too_long(param, message) }
    }

    /// 400 about Anthropic's threads, in the form that makes its SDKs' tool runners go on without them.
    pub fn no_threads() -> Self {
        let why = "send the whole conversation in `messages`";
        Self { detail: Some(Detail::NoThreads), ..Self::unsupported("thread", why) }
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self { code: Some("invalid_api_key"), ..Self::new(401, "a valid API key is needed") }
    }

    /// 403: the server is called by a name that is not its own.
    pub fn unknown_host(host: &str) -> Self {
        let why = format!(
            "this server asks for no key and is for this machine alone, and `{host}` may be any page's name; \
             --allowed-origins http://{host} lets it in, and so does --api-key"
        );
        Self { param: Some("host".into()), code: Some("unknown_host"), ..Self::new(403, why) }
    }

    /// 404 about something named in the path or the body.
    pub fn not_found(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("not_found"), ..Self::new(404, message) }
    }

    /// 409: something else is being done with it.
    pub fn conflict(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("conflict"), ..Self::new(409, message) }
    }

    /// 408: the client stopped in the middle of its request.
    pub fn too_slow() -> Self {
        Self { code: Some("request_timeout"), ..Self::new(408, "the rest of the body did not come in time") }
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        Self {
            code: Some("body_too_large"),
            ..Self::new(413, format!("a body may have at most {limit} bytes"))
        }
    }

    /// 429.
    pub fn too_many(message: impl Into<String>) -> Self {
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(1), ..Self::new(429, message) }
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Some("unavailable"), retry_after: Some(1), ..Self::new(503, message) }
    }

    /// 501: this server, as it was started, has no such thing.
    pub fn not_offered(message: impl Into<String>) -> Self {
        Self { code: Some("not_offered"), ..Self::new(501, message) }
    }

    /// 500: the request failed and it was not the client's fault.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { code: Some("internal_error"), ..Self::new(500, message) }
    }

    /// The `type` that goes with the status.
    pub fn kind(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// `{"error": {message, type, param, code}}`.
    pub fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}})
    }
}

impl ApiError {
    /// `{"type": "error", "error": {type, message, ..}}`: the same as Anthropic's clients read it.
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

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

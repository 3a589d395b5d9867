//! API errors as HTTP responses, in the error format of the client's API.

use crate::error::ApiError;
use crate::http::api::messages::MESSAGES_PATH;
use axum::{
    Json,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;

/// Header of Anthropic's clients.
pub(crate) const ANTHROPIC_VERSION: &str = "anthropic-version";

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.to_json();
        self.with_body(body)
    }
}

impl ApiError {
    pub(super) fn with_body(self, body: Value) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(body)).into_response();
        if let Some(unix_seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(unix_seconds));
        }
        if let Some(methods) = self.allow.as_deref().and_then(|methods| HeaderValue::from_str(methods).ok()) {
            response.headers_mut().insert(header::ALLOW, methods);
        }
        // Middleware needs the error value, not only its text.
        response.extensions_mut().insert(self);
        response
    }
}

/// Routes of llama.cpp's server alone.
const LLAMA_CPP_PATHS: &[&str] =
    &["/completion", "/infill", "/embedding", "/apply-template", "/props", "/slots", "/lora-adapters"];
/// Anthropic's route of text completions, which is not offered.
const COMPLETE_PATH: &str = "/v1/complete";

/// The API whose error object a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    OpenAi,
    Anthropic,
    Ollama,
    LlamaCpp,
}

impl ErrorFormat {
    /// Chosen by the path, or by the version header that Anthropic's clients send everywhere.
    pub(crate) fn of(request: &Request) -> Self {
        let path = request.uri().path();
        let is_below = |route: &str| {
            path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_below(MESSAGES_PATH)
            || path == COMPLETE_PATH
            || request.headers().contains_key(ANTHROPIC_VERSION)
        {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else if LLAMA_CPP_PATHS.iter().any(|route| is_below(route)) {
            Self::LlamaCpp
        } else {
            Self::OpenAi
        }
    }

    /// Rewrites an error of this server in this format; other responses stay as they are.
    pub(crate) fn apply(self, mut response: Response) -> Response {
        let write = match self {
            Self::OpenAi => return response,
            Self::Anthropic => ApiError::to_anthropic,
            Self::Ollama => ApiError::to_ollama,
            Self::LlamaCpp => ApiError::to_llama_cpp,
        };
        let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
        let body = write(&error);
        error.with_body(body)
    }
}

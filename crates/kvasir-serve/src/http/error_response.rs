//! API errors as HTTP responses, in the error format of the endpoint's API.

use crate::error::ApiError;
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;

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
        // Middleware needs the error value, not only its text.
        response.extensions_mut().insert(self);
        response
    }
}

/// Rewrites an error of this server as Anthropic's error object; other responses stay as they are.
pub(crate) fn in_anthropic_format(mut response: Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let body = error.to_anthropic();
    error.with_body(body)
}

//! CORS middleware: preflight responses and response headers.

use crate::http::app::App;
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Response headers that a page may read beyond the safelisted ones.
const EXPOSED: &str = "x-request-id, request-id, retry-after, x-kvasir-ignored, x-kvasir-clamped";
const METHODS: &str = "GET, POST, DELETE";
/// Cache time of a preflight response, in seconds.
const PREFLIGHT_MAX_AGE: &str = "600";

/// CORS middleware: answers preflight requests, which carry no key, and adds headers to all
/// responses.
pub(crate) async fn cors(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origins = &app.access.origins;
    if origins.is_empty() {
        return next.run(request).await;
    }
    let allowed = origins.allow_origin(request.headers());
    let is_preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match (&allowed, is_preflight) {
        (Some(_), true) => preflight_response(request.headers()),
        // Without CORS headers the browser reports the origin; for `401` it would report the key.
        (None, true) => StatusCode::OK.into_response(),
        (_, false) => next.run(request).await,
    };
    let headers = response.headers_mut();
    if !origins.any {
        // A shared cache must not serve one origin's response to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(allowed) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
    response
}

/// Preflight response. Echoes the requested header names: clients send their own
/// (`x-stainless-os`), and `*` would exclude `authorization`.
fn preflight_response(requested: &HeaderMap) -> Response {
    let fixed = |name: HeaderName, text: &'static str| (name, HeaderValue::from_static(text));
    let mut response = StatusCode::OK.into_response();
    response.headers_mut().extend([
        fixed(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        fixed(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE),
    ]);
    if let Some(names) = requested.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    response
}

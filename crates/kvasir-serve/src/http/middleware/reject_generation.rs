//! Middleware that rejects generation requests to an encoder before their body is read.

use crate::http::app::App;
use axum::{
    extract::{Request, State},
    http::Method,
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Generation routes; paths below them are included.
const GENERATION_ROUTES: [&str; 14] = [
    "/v1/chat/completions",
    "/chat/completions",
    "/v1/completions",
    "/completions",
    "/completion",
    "/v1/responses",
    "/responses",
    "/v1/messages",
    "/v1/sessions",
    "/v1/conversations",
    "/infill",
    "/apply-template",
    "/api/chat",
    "/api/generate",
];

/// If the model is an encoder, answers `POST` requests on generation routes with an error that
/// names the supported routes.
pub(crate) async fn reject_generation(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.model.facts.encoder {
        Some(encoder) if request.method() == Method::POST && is_generation_route(request.uri().path()) => {
            encoder.generation_error(&app.model.name).into_response()
        }
        _ => next.run(request).await,
    }
}

fn is_generation_route(path: &str) -> bool {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    GENERATION_ROUTES.into_iter().any(|route| path.strip_prefix(route).is_some_and(is_below))
}

#[cfg(test)]
mod tests {
    use super::is_generation_route;

    #[test]
    fn generation_routes_include_the_paths_below_them() {
        for path in
            ["/v1/chat/completions", "/v1/responses/compact", "/api/generate", "/v1/messages/count_tokens"]
        {
            assert!(is_generation_route(path), "{path}");
        }
        for path in [
            "/v1/embeddings",
            "/embedding",
            "/v1/rerank",
            "/v1/score",
            "/tokenize",
            "/api/embed",
            "/completionist",
        ] {
            assert!(!is_generation_route(path), "{path}");
        }
    }
}

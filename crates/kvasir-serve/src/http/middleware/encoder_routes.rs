//! Middleware that refuses generation by an encoder, before a body is read.

use crate::http::app::App;
use axum::{
    extract::{Request, State},
    http::Method,
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Routes of generation, with all below them.
const GENERATING: [&str; 14] = [
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

/// Answers `POST` requests on routes of generation with the reason if the model is an encoder.
pub(crate) async fn encoder_routes(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.model.facts.encoder {
        Some(encoder) if request.method() == Method::POST && generates(request.uri().path()) => {
            encoder.refuses_generation(&app.model.name).into_response()
        }
        _ => next.run(request).await,
    }
}

fn generates(path: &str) -> bool {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    GENERATING.into_iter().any(|route| path.strip_prefix(route).is_some_and(is_below))
}

#[cfg(test)]
mod tests {
    use super::generates;

    #[test]
    fn routes_of_generation_are_told_from_those_of_encoders() {
        for path in
            ["/v1/chat/completions", "/v1/responses/compact", "/api/generate", "/v1/messages/count_tokens"]
        {
            assert!(generates(path), "{path}");
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
            assert!(!generates(path), "{path}");
        }
    }
}

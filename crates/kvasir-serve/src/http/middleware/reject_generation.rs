//! Middleware that rejects generation requests to an encoder before their body is read.

use crate::http::app::App;
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// If the model is an encoder, answers with an error that names the supported routes. A layer of
/// the generation routes only.
pub(crate) async fn reject_generation(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.model.facts.encoder {
        Some(encoder) => encoder.generation_error(&app.model.name).into_response(),
        None => next.run(request).await,
    }
}
